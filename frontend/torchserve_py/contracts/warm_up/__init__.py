"""Warm-up requests: what `model-config.yaml` says of them."""
