"""Refused steps of sequences: what their cause means for clients, and whether the sequence ends with it."""

from typing import Final

from torchserve_py.base.causes import Cause, CloseReason
from ts.protocol.messages import HELD_ELSEWHERE, SequenceNews

#: How long (seconds) a job waits for a sequence that another server is asked to let go, and the shortest and longest
#: pause before it is sent again.
_HELD_LIMIT: Final = 1.0
_HELD_PAUSES: Final = (0.005, 0.1)
#: By the cause of a refused step: why the sequence of the step ends; None if the sequence continues.
CLOSE_REASONS: Final[dict[Cause | None, CloseReason | None]] = {
    Cause.sequence_lost: CloseReason.evicted,
    Cause.sequence_expired: CloseReason.idle,
    Cause.sequence_moved: CloseReason.suspended,
    Cause.version_gone: CloseReason.suspended,
    Cause.migration_failed: CloseReason.suspended,
    # These may be of another sequence with the same id: the one that is open continues at its next step.
    Cause.sequence_ended: CloseReason.suspended,
    Cause.sequence_unknown: CloseReason.suspended,
    Cause.sequence_open: None,
    Cause.state_damaged: CloseReason.suspended,
    Cause.step_applied: None,
    Cause.step_differs: None,
    Cause.step_gap: None,
    Cause.sequence_store: None,
    Cause.request_running: None,
    Cause.not_applied: None,
    # Answers to a step that is sent again: the cause that it failed with before, or that its outcome is unknown.
    Cause.worker_died: None,
    Cause.response_timeout: None,
    Cause.outcome_unknown: None,
}


def cause_of(news: SequenceNews, *, durable: bool) -> Cause | None:
    """Return the cause of a step that was not applied, or may not have been; None for handlers' answers and errors.

    An outcome is unknown only where states of sequences are stored: elsewhere the answer is an error like any other.
    """
    if news.cause == HELD_ELSEWHERE:
        return Cause.sequence_moved
    if news.cause not in CLOSE_REASONS or (news.cause == Cause.outcome_unknown and not durable):
        return None
    return Cause(news.cause)


def close_reason(refusal: Cause | None, *, durable: bool) -> CloseReason | None:
    """Return why the sequence of a refused step ends; None if it continues, as where only memory has its state."""
    reason = CLOSE_REASONS.get(refusal)
    return None if reason is CloseReason.suspended and not durable else reason


def pause_of(waited: float) -> float | None:
    """Return how long to wait before a step of a held sequence is sent again; None if it has waited long enough."""
    return None if waited >= _HELD_LIMIT else min(max(waited, _HELD_PAUSES[0]), _HELD_PAUSES[1])
