"""Inference requests and their jobs: what doors hand in, the dispatcher keeps, and workers run."""
