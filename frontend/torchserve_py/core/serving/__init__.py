"""What doors and features may use of the rest: one interface, plain values, and errors."""
