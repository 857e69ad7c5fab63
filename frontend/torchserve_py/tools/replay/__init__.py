"""The replay of journals on a running server."""
