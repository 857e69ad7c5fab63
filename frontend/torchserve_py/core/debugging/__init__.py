"""Workers that a person starts, perhaps in a debugger."""
