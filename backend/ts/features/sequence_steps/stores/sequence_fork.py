"""A fork of a stored sequence: a copy under another id, from which both go on by themselves. Pure; no store, no clock.

The fork has the steps of the original up to the one that it is made after: a step among them that is sent to the fork
again is a repetition there, as it is in the original. Its token is its own, so that no step enters both.
"""

import secrets
from dataclasses import replace
from typing import Final

from ts.features.sequence_steps.record import (
    DIGEST_SIZE,
    NO_STATE,
    Checkpoint,
    Head,
    SequenceRecord,
    pack_logged_head,
    unpack_head,
)
from ts.features.sequence_steps.stores.maintenance import StoredSequence

#: A fork may be idle for as long (seconds) at least, even if the original has been idle for nearly too long.
_LEAST_TIME: Final = 3_600.0


class CannotFork(Exception):
    """The sequence cannot be forked there. The message says why."""


def fork(sequence: StoredSequence, sequence_id: str, step: int | None = None) -> StoredSequence:
    """Return a copy of an open sequence under another id.

    Raises:
        CannotFork: It is over, or the store does not have the state after that step.

    Args:
        step: The number of the step after which the fork goes on; None for the last one.
    """
    if sequence.closed:
        raise CannotFork(f"the sequence is over ({sequence.closed}), and its state is gone")
    head = unpack_head(sequence.head)
    last = head.last if step is None else step
    first = _first_possible(head)
    if not first <= last <= head.last:
        steps = f"step {head.last}" if first == head.last else f"steps {first} to {head.last}"
        raise CannotFork(f"it cannot be forked after step {last}; the store has its state after {steps}")
    log = [entry for entry in sequence.log if entry.number <= last]
    checkpoint = Checkpoint(head.checkpoint, head.state_checksum, head.log_from if log else 0)
    record = SequenceRecord(
        *(1, secrets.token_hex(16), head.version, head.state_version, last),
        forgotten_ids=head.forgotten_ids,
        checkpoint=NO_STATE if sequence.state is None and not log else checkpoint,
    )
    return replace(
        sequence,
        sequence_id=sequence_id,
        head=pack_logged_head(record, record.checkpoint),
        time_left=max(sequence.time_left, _LEAST_TIME),
        tokens=record.tokens,
        ids=_ids_until(last, head, sequence.ids),
        answers=[each for each in sequence.answers if each.step.number <= last],
        log=log,
    )


def _first_possible(head: Head) -> int:
    """Return the number of the first step after which the store still has the state."""
    if not head.log_from:
        return head.last
    return head.checkpoint if head.checkpoint == head.log_from - 1 and head.checkpoint > 0 else head.log_from


def _ids_until(last: int, head: Head, ids: bytes) -> bytes:
    """Return the digests of the request ids of the steps until the last one of a fork.

    Where some steps had numbers, or some ids are forgotten, nothing tells which steps the ids are of: all of them stay,
    since an id that is refused harms less than a step that is applied twice.
    """
    return ids[: last * DIGEST_SIZE] if len(ids) == head.last * DIGEST_SIZE else ids
