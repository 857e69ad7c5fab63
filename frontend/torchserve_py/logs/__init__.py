"""Log files in TorchServe's formats or as JSON, or as the operator configures them."""

from torchserve_py.logs.formatters import JsonFormatter, LineFormatter

__all__ = ["JsonFormatter", "LineFormatter"]
