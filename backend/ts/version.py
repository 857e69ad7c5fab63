"""The version that handlers see; it is the version of the server they run under."""

__version__ = "0.1.0"
