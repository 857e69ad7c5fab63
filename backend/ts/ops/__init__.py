"""Traces of handlers."""
