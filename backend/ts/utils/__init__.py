"""Small things that handlers import from TorchServe's ``ts.utils``."""
