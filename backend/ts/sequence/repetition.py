"""Decides whether a step repeats an earlier one, or is the first of a new incarnation of its sequence.

Request ids are unique within an incarnation. The start marker and the request id decide:

* Without the start marker, an id that the latest incarnation has seen repeats that step; even if the sequence has ended
  in the meantime, because the lost answer may be that of its last step.
* With the start marker, only the id of the incarnation's first step repeats it, and only with the same body: the client
  has lost the answer to the start. Every other id begins a new incarnation, even an id that a later step has used.
* The id of an incarnation's first step begins a new incarnation once the old one is over and had further steps: a
  client that has sent further steps has received the answer to the first.
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
    """Return whether the step repeats one that was applied and whose answer is kept.

    Args:
        restart_expired: Whether a step of an expired sequence begins a new one.
        has_same_body: Returns whether the incarnation's first step had the same body; called only if that decides.
    """
    if step.request_id == lease.first_id:
        may_begin = step.starts or lease.closed == ENDED or bool(lease.closed and restart_expired)
        if may_begin and lease.closed and lease.steps:
            return False
        return not may_begin or has_same_body()
    return not step.starts and step.request_id in lease.request_ids


def digest_of(body: Any) -> bytes:
    """Return the digest of the body of a `ts.protocol.messages.InferRow`."""
    if type(body) is list:  # the order of parameters is insignificant
        body = b"".join(sorted(msgpack.packb(parameter) for parameter in body))
    return hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest()
