"""The answers to steps that do not run: errors with the reason why a step is not applied, and kept answers."""

import logging
from typing import Final

from ts.protocol.messages import CAUSE_HEADER, ResultRow
from ts.sequence.step import Step, answer_of
from ts.sequence.stores.store import Store, StoreError

logger = logging.getLogger(__name__)

#: The error answer to a client: the status and the cause, and the message.
StepRefusal = tuple[tuple[int, str], str]
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


def look_up(store: Store, step: Step, incarnation: int | None = None, otherwise: ResultRow | None = None) -> ResultRow:
    """Return the kept answer to a step, whoever holds its sequence.

    Args:
        incarnation: The incarnation in which the step may have been applied; None means the latest.
        otherwise: The answer if the store has none for the step; None means ``outcome_unknown``.
    """
    try:
        kept = store.find(step.sequence_id, step.request_id, incarnation)
    except StoreError as error:
        logger.error("The sequence store cannot tell whether a step was applied: %s", error)
        return unknown(step)
    return answer_of(step.row.job_id, kept) if kept is not None else otherwise or unknown(step)


def unknown(step: Step) -> ResultRow:
    """Return the error answer ``outcome_unknown``: neither the worker nor the store knows whether the step applied."""
    return error_answer(step.row.job_id, *UNKNOWN, NOT_TOLD)
