"""Keys: those that the server makes when it starts, and those that its operator gives it."""
