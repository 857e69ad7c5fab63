"""What doors and plugins may use of the rest: one interface, plain values, and errors."""
