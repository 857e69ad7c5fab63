"""The metrics that a handler reports of itself; the server adds them to its own."""
