"""Why a step of a sequence is not applied, and how its client is told."""

from __future__ import annotations

from typing import Final

from ts.protocol.messages import CAUSE_HEADER, ResultRow

#: What a client is told: the status and the cause, and the message.
Refusal = tuple[tuple[int, str], str]
EXPIRED: Final = (410, "sequence_expired")
LOST: Final = (410, "sequence_lost")
MOVED: Final = (409, "sequence_moved")
RUNNING: Final = (409, "request_running")
NOT_STORED: Final = (503, "sequence_store")
UNKNOWN: Final = (503, "outcome_unknown")
#: The handler's fault, not the store's: its state is of a kind that cannot be stored, and trying again does not help.
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
    """Return the row of a step that was not applied, and why."""
    return job_id, False, status, "", ((CAUSE_HEADER, cause),), b"", message
