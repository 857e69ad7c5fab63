"""What the client is told when a model raises."""

from __future__ import annotations

import logging

from ts import device_loss
from ts.runtimes.errors import Failure
from ts.runtimes.mlserver.api import MLServerError

logger = logging.getLogger(__name__)


def failure_of(error: Exception) -> Failure:
    """Return status and message for what a model has raised; to be called where it was caught.

    MLServer's own errors say which status they mean. Anything else is 500, told as MLServer's workers tell it: by class
    and text.
    """
    if isinstance(error, Failure):
        return error
    if isinstance(error, MLServerError):
        return Failure(_status(error.status_code), str(error))
    if device_loss.memory_ran_out(error):
        logger.exception("Out of memory")
        return Failure(507, "Out of resources")
    if told := device_loss.note_loss(error):
        logger.exception("The device failed")
        return Failure(500, told)
    logger.exception("The model failed")
    return Failure(500, f"{type(error).__module__}.{type(error).__qualname__}: {error}")


def _status(code: object) -> int:
    if isinstance(code, int) and 400 <= code <= 599 and code != 499:
        return int(code)
    logger.warning("The model failed with the status %r, which is no HTTP status of an error: answering 500", code)
    return 500
