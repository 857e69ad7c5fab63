"""Handlers for models that several processes run together, under TorchServe's import paths."""
