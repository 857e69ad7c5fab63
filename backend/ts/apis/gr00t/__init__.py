"""Observations and actions of GR00T's robots."""
