"""The exceptions with which a runtime ends a row, a batch or the loading of a model."""

from __future__ import annotations

import logging

from ts import device_loss

logger = logging.getLogger(__name__)

#: The limit in characters of an error text that is sent to the frontend.
_MAX_TEXT = 64 * 1024


class Failure(Exception):
    """A row, or every row of a batch, is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HandlerFailed(Failure):
    """The handler raised an exception that is not meant for the client, or returned an invalid result.

    TorchServe answers 503; other protocols answer 500.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


def too_large(size: int, limit: int) -> str:
    """Return the error text for a response body of ``size`` bytes."""
    return f"The response has {size} bytes; max_response_size is {limit}."


def wire_text(text: str) -> str:
    """Return ``text`` in a form that the socket can carry: of limited length, and without lone surrogates."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def device_failure(error: BaseException) -> Failure | None:
    """Return the failure of a call that ran out of memory or lost its device, and log it; None for other errors."""
    if device_loss.memory_ran_out(error):
        logger.error("Out of memory", exc_info=error)
        return Failure(507, "Out of resources")
    if text := device_loss.note_loss(error):
        logger.error("The device failed", exc_info=error)
        return Failure(500, text)
    return None


class LoadError(Exception):
    """The model could not be loaded, for a reason that its author has to fix."""


class JobsCancelled(Exception):
    """All rows of the running batch have ended, because their clients left or their requests failed.

    `ts.handler_utils.utils.send_intermediate_predict_response` raises it, so that a streaming handler stops working. A
    handler may catch it to clean up; further results are discarded.
    """
