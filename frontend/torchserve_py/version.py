"""The version of this server."""

__version__ = "0.1.0"

#: The version of TorchServe whose interfaces this server has: tools for TorchServe ask for a version of it.
TORCHSERVE_VERSION = "0.12.0"
