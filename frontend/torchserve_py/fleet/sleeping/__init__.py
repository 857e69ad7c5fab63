"""Handlers that sleep: they give the memory of their device back, and take it again for the next request."""
