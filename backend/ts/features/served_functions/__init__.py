"""Functions and classes that are decorated with `ts.serve`, and what they take and give."""
