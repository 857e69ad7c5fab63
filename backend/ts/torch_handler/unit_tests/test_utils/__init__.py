"""A context to test a handler with, without a server."""
