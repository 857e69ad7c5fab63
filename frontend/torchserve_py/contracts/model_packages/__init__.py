"""What a model needs besides the packages of the server."""
