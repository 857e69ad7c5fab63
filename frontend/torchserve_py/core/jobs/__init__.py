"""Inference requests and their jobs: what endpoints hand in, the dispatcher keeps, and workers run."""
