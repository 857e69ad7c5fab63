"""Metrics: which there are, those of handlers, lines of logs with them, and `/metrics` for Prometheus."""
