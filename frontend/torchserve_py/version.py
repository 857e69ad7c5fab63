"""The version of this server."""

__version__ = "0.1.0"
