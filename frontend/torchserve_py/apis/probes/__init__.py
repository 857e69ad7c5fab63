"""Probes: whether the server serves, and whether it should get traffic."""
