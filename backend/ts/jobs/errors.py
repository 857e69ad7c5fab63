"""The exceptions with which a runtime ends a row, a batch or the loading of a model."""

import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from ts.jobs import device_loss

logger = logging.getLogger(__name__)

_STANDARD_LIBRARY: Final = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120 - pathlib would cost every worker its import
_OWN: Final = f"{__file__.rpartition('/jobs/')[0]}/"
_BUILT_IN_HANDLERS: Final = f"{_OWN}torch_handler/"

#: The limit in characters of an error text that is sent to the frontend.
_MAX_TEXT = 64 * 1024


#: TorchServe's name of an error that the client has made.
BAD_REQUEST: Final = "BadRequestException"
#: The name of the error of a request for something that is not there, which is no failure of the model.
NOT_FOUND: Final = "NotFound"
#: The statuses of a request that cannot be read, or does not fit the model.
_CLIENTS: Final = (400, 415, 422)


class PredictionException(Exception):
    """Raised by a handler to answer the whole batch with a message and an HTTP status of its choice."""

    #: TorchServe's name of the error, empty for that of all errors that handlers raise.
    kind = ""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


class BadRequestError(PredictionException):
    """The request is wrong, not the handler: status 400."""

    kind = BAD_REQUEST

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class RowFailure(Exception):
    """A row, or every row of a batch, is answered with an error.

    Args:
        details: What more JSON can say of it, for the endpoints whose errors have details; None for nothing.
        headers: Further headers of the answer.
        kind: TorchServe's name of the error; empty for that of errors that handlers raise. Where none is given, the
            status tells whether the client has made the error.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        details: Any = None,
        headers: Sequence[tuple[str, str]] = (),
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = details
        self.headers = headers
        self.kind = (BAD_REQUEST if status in _CLIENTS else "") if kind is None else kind


class HandlerFailed(RowFailure):
    """The handler failed, with no words for the client: TorchServe answers 503; other protocols answer 500."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


def too_large(size: int, limit: int) -> str:
    """Return the error text for a response body of ``size`` bytes."""
    return f"The response has {size} bytes; max_response_size is {limit}."


def text_of(value: object) -> str:
    """Return ``str(value)``, or the name of the value's type if that raises: the value may be a model's own."""
    try:
        return str(value)
    except Exception:
        logger.exception("The %s of the model's code cannot be converted to text", type(value).__name__)
        return type(value).__name__


def wire_text(text: str) -> str:
    """Return ``text`` in a form that the socket can carry: of limited length, and without lone surrogates."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def device_failure(error: BaseException) -> RowFailure | None:
    """Return the failure of a call whose memory or device failed, and log it; None for an error of the code itself.

    Call this wherever an exception of a model's code, or of what moves its tensors, would be swallowed: CUDA reports
    what a kernel did in whichever call comes next.

    Status 507: memory ran out; that passes, this process can continue, and the request may be sent again. Status 500:
    the device is lost; this process ends once it has sent its answers.
    """
    if device_loss.memory_ran_out(error):
        logger.error("Out of memory", exc_info=error)
        return RowFailure(507, "Out of resources")
    if text := device_loss.note_loss(error):
        logger.error("The device failed", exc_info=error)
        return RowFailure(500, text)
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
