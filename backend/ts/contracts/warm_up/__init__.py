"""Warm-up requests: how a worker runs them."""
