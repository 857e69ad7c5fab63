"""States of sequences in Redis, for the servers of a fleet."""
