"""Sequences in memory move to other workers when theirs is to leave."""
