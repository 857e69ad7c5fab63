"""The gRPC endpoints: TorchServe's inference and management services, health checking and reflection."""
