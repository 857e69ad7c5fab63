"""Continuous batching; all of it is in the workers."""
