"""Functions that are models: how a worker calls them."""
