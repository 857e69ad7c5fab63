"""What operators ask for: reports on a configuration, a command for stores, and the start of a container."""
