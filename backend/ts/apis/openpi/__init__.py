"""Observations and actions of openpi's robots."""
