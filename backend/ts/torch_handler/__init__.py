"""Built-in handlers; everything here may import torch."""
