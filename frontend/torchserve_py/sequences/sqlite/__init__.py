"""States of sequences in a file, for the workers of one machine."""
