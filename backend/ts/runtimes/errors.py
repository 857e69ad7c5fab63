"""What can go wrong between a wire row and its answer."""

from __future__ import annotations


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


class LoadError(Exception):
    """The model could not be loaded, for a reason that its author has to mend."""


class JobsCancelled(Exception):
    """Nobody waits for any row of the running batch any longer.

    Raised out of `ts.handler_utils.utils.send_intermediate_predict_response`, so that a handler which streams stops
    working for clients that left. A handler may catch it to clean up; there is nobody to answer.
    """
