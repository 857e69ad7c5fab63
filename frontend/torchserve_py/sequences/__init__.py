"""Sequences and their states: stores, steps and bookmarks."""
