"""Pages of other sites are kept away from a server without keys."""
