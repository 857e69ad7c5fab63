"""Rows and answers of the APIs besides TorchServe's own."""
