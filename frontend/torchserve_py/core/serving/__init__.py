"""What endpoints and plugins may use of the rest: one interface, plain values, and errors."""
