"""Versions of a model share its requests: by weights, or while a new one is tried."""
