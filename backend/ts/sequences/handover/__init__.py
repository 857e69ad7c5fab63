"""Sequences in memory move from one worker to another between two of their steps."""
