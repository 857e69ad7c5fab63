"""What can go wrong between a wire row and a handler's answer, as exceptions with the status that the client gets."""

from __future__ import annotations


class RowError(Exception):
    """One row cannot be run or answered; its batch-mates go on.

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
