"""The GPUs that the host has, and those of them that a server may use."""
