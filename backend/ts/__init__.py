"""The worker process and all that a handler may import, under TorchServe's own package name."""

from ts.serve_decorator import CallFailed, serve
from ts.version import __version__

__all__ = ["CallFailed", "__version__", "serve"]
