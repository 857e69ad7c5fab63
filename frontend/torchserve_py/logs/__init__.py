"""What the server writes down: log files in TorchServe's forms, and how operators have them otherwise."""

from torchserve_py.logs.formatters import JsonFormatter, LineFormatter

__all__ = ["JsonFormatter", "LineFormatter"]
