"""Refused steps of sequences: which cause the worker's answer names, and whether the sequence ends with it."""

from typing import Final

from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause, EndReason
from ts.protocol.messages import CAUSE_HEADER

#: By the cause of a refused step: why the sequence of the step ends; None if the sequence goes on.
END_REASONS: Final[dict[Cause | None, EndReason | None]] = {
    Cause.sequence_lost: EndReason.evicted,
    Cause.sequence_expired: EndReason.idle,
    Cause.sequence_moved: EndReason.suspended,
    Cause.sequence_store: None,
    Cause.request_running: None,
    Cause.not_applied: None,
    # Answers to a step that is sent again: the cause that it failed with before, or that its outcome is unknown.
    Cause.worker_died: None,
    Cause.response_timeout: None,
    Cause.outcome_unknown: None,
}


def cause_of(part: Part, *, durable: bool) -> Cause | None:
    """Return the cause in the answer to a step that was not applied, or may not have been; None for other answers.

    An outcome is unknown only where states of sequences are stored: elsewhere the answer is an error like any other.
    """
    if part.error is None:
        return None
    named = next((value for name, value in part.headers if name == CAUSE_HEADER), "")
    if named not in END_REASONS or (named == Cause.outcome_unknown and not durable):
        return None
    return Cause(named)
