"""Functions and classes that are decorated with `ts.serve`."""
