"""MLServer's runtimes."""
