"""What all doors of HTTP share, and TorchServe's own predictions and management. Doors translate and never decide."""
