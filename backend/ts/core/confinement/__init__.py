"""What becomes a worker that is confined."""
