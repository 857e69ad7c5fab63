"""What all endpoints share, and TorchServe's predictions and management. Endpoints translate and never decide."""
