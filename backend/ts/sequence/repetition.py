"""When a step is one that was sent before, and when it is the first of a new incarnation of its sequence.

Request ids are unique within an incarnation. What a client says decides:

* Without the start marker an id that the latest incarnation has seen means the same step, sent again; be it that the
  sequence has ended meanwhile, since the answer that was lost may be that of its last step.
* With the start marker only the id that the incarnation began with means that, and only with the body that it had then:
  somebody has lost the answer to the start. Any other id begins anew, also one that was used in the middle.
* The id that an incarnation began with begins anew once that incarnation is over and had further steps: a client that
  sends these has got the answer to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgpack

from ts.sequence.answers import Step
from ts.sequence.stores.store import ENDED, Lease

_DIGEST_SIZE = 8


def is_repeated(step: Step, lease: Lease, *, restart_expired: bool, has_same_body: Callable[[], bool]) -> bool:
    """Whether the step was applied, as far as answers are kept.

    Args:
        step: The step.
        lease: That of its sequence.
        restart_expired: Whether a step of an expired sequence begins a new one.
        has_same_body: Says whether the incarnation's first step had the same body; asked only where that decides.
    """
    if step.request_id == lease.first_id:
        may_begin = step.starts or lease.closed == ENDED or bool(lease.closed and restart_expired)
        if may_begin and lease.closed and lease.steps:
            return False
        return not may_begin or has_same_body()
    return not step.starts and step.request_id in lease.request_ids


def digest_of(body: Any) -> bytes:
    """Return what tells the body of one `ts.protocol.messages.InferRow` from others."""
    if type(body) is list:  # the order of parameters means nothing
        body = b"".join(sorted(msgpack.packb(parameter) for parameter in body))
    return hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest()
