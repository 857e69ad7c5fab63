"""What workers read of SageMaker's requests."""
