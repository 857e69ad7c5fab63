"""What can go wrong between a wire row and its answer."""

from __future__ import annotations

#: The most characters of an error's text that are worth telling.
_MAX_TEXT = 64 * 1024


class Failure(Exception):
    """A row, or every row of a batch, is answered with an error.

    Args:
        status: The HTTP status for the client.
        message: What was wrong, for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HandlerFailed(Failure):
    """The handler raised what was not meant for the client, or returned what it must not.

    TorchServe answers 503; protocols that know better do not.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


def wire_text(text: str) -> str:
    """Return ``text`` as it can be told over the socket: of bounded length, and without what UTF-8 cannot carry."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


class LoadError(Exception):
    """The model could not be loaded, for a reason that its author has to mend."""


class JobsCancelled(Exception):
    """Nobody waits for any row of the running batch any longer.

    Raised out of `ts.handler_utils.utils.send_intermediate_predict_response`, so that a handler which streams stops
    working for clients that left. A handler may catch it to clean up; there is nobody to answer.
    """
