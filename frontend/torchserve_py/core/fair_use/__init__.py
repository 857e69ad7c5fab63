"""Clients of one model take turns, and what is urgent goes first."""
