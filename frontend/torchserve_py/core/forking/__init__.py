"""Workers that are forked from a process that has imported what they need."""
