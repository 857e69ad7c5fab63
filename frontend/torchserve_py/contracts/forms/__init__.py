"""Bodies that are forms; all of it is in the workers."""
