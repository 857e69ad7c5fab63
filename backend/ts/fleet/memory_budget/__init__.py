"""Models that sleep to make room for others: what the worker does."""
