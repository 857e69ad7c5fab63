"""The APIs besides TorchServe's own over HTTP."""
