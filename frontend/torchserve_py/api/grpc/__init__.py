"""The gRPC doors: TorchServe's inference and management services, health checking and reflection."""
