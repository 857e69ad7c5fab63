"""Continuous batching: a handler is called step by step."""
