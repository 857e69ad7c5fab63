"""What is served: registered models, their versions, and how these are built."""
