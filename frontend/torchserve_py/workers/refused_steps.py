"""Steps of sequences that a worker did not apply, or may have applied: how its answer says why, and what that means."""

from __future__ import annotations

from typing import Final

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.workers.parts import Part
from ts.protocol.messages import CAUSE_HEADER

#: Why a step may not have been answered, and why the sequence ends then; None if it goes on.
ENDS: Final[dict[Cause, EndReason | None]] = {
    Cause.sequence_lost: EndReason.evicted,
    Cause.sequence_expired: EndReason.idle,
    Cause.sequence_moved: EndReason.suspended,
    Cause.sequence_store: None,
    Cause.request_running: None,
    # These it is told where it was only asked whether a step was applied, or where that cannot be told.
    Cause.worker_died: None,
    Cause.response_timeout: None,
    Cause.outcome_unknown: None,
}


def cause_of(part: Part) -> Cause | None:
    """Why the step that is answered by this error was not applied; None if that is not what it says."""
    named = next((value for name, value in part.headers if name == CAUSE_HEADER), "")
    return Cause(named) if named in ENDS else None
