"""Log files in TorchServe's formats or as JSON, or as the operator configures them."""

from typing import Final

from torchserve_py.logs.formatters import JsonFormatter, LineFormatter

__all__ = ["MODEL_LOGGER", "JsonFormatter", "LineFormatter"]

#: What models print and log.
MODEL_LOGGER: Final = "MODEL_LOG"
