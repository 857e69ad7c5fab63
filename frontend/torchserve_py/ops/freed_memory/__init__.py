"""Memory that the server has freed goes back to the system."""
