"""Metrics that handlers report."""
