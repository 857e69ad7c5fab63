"""When a step is one that was sent before, and when it is the first of a new incarnation of its sequence.

Request ids are unique within an incarnation. What a client says decides:

* Without the start marker an id that the latest incarnation has seen means the same step, sent again; be it that the
  sequence has ended meanwhile, since the answer that was lost may be that of its last step.
* With the start marker only the id that the incarnation began with means that: somebody has lost the answer to the
  start. Any other id begins anew, also one that was used in the middle.
* The id that an incarnation began with begins anew once that incarnation is over and had further steps: a client that
  sends these has got the answer to the first.
"""

from __future__ import annotations

from ts.sequence.answers import Step
from ts.sequence.stores.store import ENDED, Lease


def is_repeated(step: Step, lease: Lease, *, restart_expired: bool) -> bool:
    """Whether the step was applied, as far as answers are kept."""
    if step.request_id == lease.first_id:
        may_begin = step.starts or lease.closed == ENDED or restart_expired
        return not (lease.closed and lease.steps and may_begin)
    return not step.starts and step.request_id in lease.request_ids
