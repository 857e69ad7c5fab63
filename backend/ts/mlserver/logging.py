"""MLServer's logger; its lines say which model they come from."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from ts.mlserver.context import model_name_var, model_version_var

if TYPE_CHECKING:
    from ts.mlserver.settings import Settings

LoggerName = "mlserver"
logger = logging.getLogger(LoggerName)

_HANDLER_NAME = "stdout_stream_handler"


def get_logger() -> logging.Logger:
    """Return MLServer's logger."""
    return logger


class ModelLoggerFormatter(logging.Formatter):
    """Puts name and version of the model into every line, or into every object with ``use_structured_logging``."""

    _PLAIN = "%(asctime)s [%(name)s]%(model)s %(levelname)s - %(message)s"
    _STRUCTURED = (
        '{"time": "%(asctime)s", "name": "%(name)s", "level": "%(levelname)s", "message": "%(message)s" %(model)s}'
    )

    def __init__(self, settings: Settings | None) -> None:
        self.use_structured_logging = settings is not None and settings.use_structured_logging
        super().__init__(self._STRUCTURED if self.use_structured_logging else self._PLAIN)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        name, version = model_name_var.get(""), model_version_var.get("")
        if not self.use_structured_logging:
            model = f"[{name}:{version}]" if version else f"[{name}]" if name else ""
        else:
            model = f', "model_name": "{name}"' if name else ""
            model += f', "model_version": "{version}"' if name and version else ""
        record.__dict__["model"] = model
        return super().format(record)


def configure_logger(settings: Settings | None = None) -> logging.Logger:
    """Let MLServer's logger write to standard output, which is the model log; return it."""
    handler = next((each for each in logger.handlers if each.get_name() == _HANDLER_NAME), None)
    if handler is None:
        handler = logging.StreamHandler(sys.stdout)
        handler.set_name(_HANDLER_NAME)
        logger.addHandler(handler)
        logger.propagate = False
    handler.setFormatter(ModelLoggerFormatter(settings))
    logger.setLevel(logging.DEBUG if settings and settings.debug else logging.INFO)
    return logger
