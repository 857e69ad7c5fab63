"""What canaries and shadows need of workers."""
