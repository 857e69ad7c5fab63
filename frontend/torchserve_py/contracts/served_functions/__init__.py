"""Functions that are models: what their source says about how to serve them."""
