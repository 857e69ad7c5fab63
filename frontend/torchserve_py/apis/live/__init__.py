"""Live sessions: a WebSocket whose messages are the steps of one sequence (``docs/live-sessions.md``)."""
