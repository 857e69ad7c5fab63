"""Base classes of handlers from before TorchServe 0.1."""
