"""What is served, saved: the snapshots of a server, and the state that the servers of a fleet share."""
