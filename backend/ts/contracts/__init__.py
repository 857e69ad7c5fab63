"""Kinds of model code besides TorchServe's handlers, and other ways to run handlers."""
