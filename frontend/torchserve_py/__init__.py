"""torchserve-py: a multi-worker model server for PyTorch. `server.py` is where to start reading."""

from torchserve_py.version import __version__

__all__ = ["__version__"]
