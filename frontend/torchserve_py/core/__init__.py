"""What is served: registered models, their versions and their configuration."""
