"""The reasons why a step of a sequence is not applied, and the error answers with which clients learn of them."""

from __future__ import annotations

from typing import Final

from ts.protocol.messages import CAUSE_HEADER, ResultRow

#: The error answer to a client: the status and the cause, and the message.
Refusal = tuple[tuple[int, str], str]
EXPIRED: Final = (410, "sequence_expired")
LOST: Final = (410, "sequence_lost")
MOVED: Final = (409, "sequence_moved")
RUNNING: Final = (409, "request_running")
NOT_STORED: Final = (503, "sequence_store")
UNKNOWN: Final = (503, "outcome_unknown")
#: A defect of the handler, not of the store: the state cannot be encoded or decoded, so a retry does not help.
UNREADABLE: Final = (500, "handler_error")

ROLLED_BACK: Final = (
    "Another request of its sequence failed meanwhile, so the sequence went back to an earlier state and the step does"
    " not count. Send it again."
)
NOT_TOLD: Final = (
    "It cannot be told whether the step was applied. Send it again with the same ts_request_id to learn what has become"
    " of it."
)
BROKEN_OFF: Final = (
    "The stream broke off after a part of it was stored. Send it again with the same ts_request_id to get what there"
    " was."
)
NOT_APPLIED: Final = "The step was not applied."


def error_answer(job_id: str, status: int, cause: str, message: str) -> ResultRow:
    """Return the result row of a step that ends with an error; ``cause`` goes into the header `CAUSE_HEADER`."""
    return job_id, False, status, "", ((CAUSE_HEADER, cause),), b"", message
