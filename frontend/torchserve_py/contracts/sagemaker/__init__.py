"""Scripts for SageMaker."""
