"""Which MLServer's API this is."""

__version__ = "1.7.1"
