"""Stored sequences are forked, go back to earlier steps, and move between servers while these run."""
