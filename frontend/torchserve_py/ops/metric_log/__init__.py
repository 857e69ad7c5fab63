"""The logs of metrics, in TorchServe's format."""
