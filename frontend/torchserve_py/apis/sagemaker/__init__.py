"""What Amazon SageMaker calls in a container: invocations, sessions, and bidirectional streams."""
