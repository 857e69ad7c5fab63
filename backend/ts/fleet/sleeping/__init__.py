"""Handlers that sleep: what the worker does."""
