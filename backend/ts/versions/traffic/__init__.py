"""What workers do of the traffic between versions."""
