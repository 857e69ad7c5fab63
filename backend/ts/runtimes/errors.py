"""The exceptions with which a runtime ends a row, a batch or the loading of a model."""

import logging
import os
from types import TracebackType
from typing import Final

from ts import device_loss

logger = logging.getLogger(__name__)

_STANDARD_LIBRARY: Final = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120 - pathlib would cost every worker its import
_OWN: Final = f"{__file__.rpartition('/runtimes/')[0]}/"
_BUILT_IN_HANDLERS: Final = f"{_OWN}torch_handler/"

#: The limit in characters of an error text that is sent to the frontend.
_MAX_TEXT = 64 * 1024


class Failure(Exception):
    """A row, or every row of a batch, is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HandlerFailed(Failure):
    """The handler failed, with no words for the client: TorchServe answers 503; other protocols answer 500."""

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


def users_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first frame of the model's code on, or all; None if the text says it all."""
    frame = error.__traceback__
    while frame is not None and _is_worker_code(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame or (None if isinstance(error, SyntaxError | ImportError | LoadError) else error.__traceback__)


def _is_worker_code(file: str) -> bool:
    """Return whether a file is the worker's own, or the standard library's, which the worker calls."""
    if file.startswith(_OWN):
        return not file.startswith(_BUILT_IN_HANDLERS)
    return file.startswith("<frozen ") or (file.startswith(_STANDARD_LIBRARY) and "/site-packages/" not in file)


class JobsCancelled(Exception):
    """All rows of the running batch have ended, because their clients left or their requests failed.

    A streaming handler that sends a part gets it, to stop working; it may catch it to clean up.
    """
