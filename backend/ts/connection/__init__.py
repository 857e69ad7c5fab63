"""The worker's end of its two connections to the frontend."""
