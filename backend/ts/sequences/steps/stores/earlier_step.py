"""A stored sequence as it was after an earlier step, as far as its store still has that. Pure; no store, no clock."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ts.sequences.steps.record import DIGEST_SIZE, NO_STATE, Checkpoint, RecordHead, unpack_head
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.store import KeptAnswer

#: A copy or a sequence that has gone back may be idle for as long (seconds) at least.
LEAST_TIME = 3_600.0


class NoStateThere(Exception):
    """The store does not have the state of a sequence after that step. The message says why, and after which it has."""


class Earlier(NamedTuple):
    """What a sequence had after a step.

    Attributes:
        checkpoint: How the store has the state after it.
        log, ids, answers: Those of the sequence until then.
    """

    checkpoint: Checkpoint
    log: Sequence[LogEntry]
    ids: bytes
    answers: Sequence[KeptAnswer]


def steps_with_state(sequence: StoredSequence) -> list[range]:
    """Return the steps after which the store has the state of a sequence, in order; none if it is over."""
    if sequence.closed:
        return []
    head = unpack_head(sequence.head)
    if not head.log_from:
        return [range(head.last, head.last + 1)]
    return list(_runs(head, sequence.log))


def _runs(head: RecordHead, log: Sequence[LogEntry]) -> Iterator[range]:
    """Yield the numbers of steps that follow each other, after all of which there is a state."""
    is_known = True
    first = head.log_from - 1 if head.checkpoint == head.log_from - 1 and head.checkpoint > 0 else head.log_from
    for entry in log:
        if entry.is_gap:
            if is_known and first < entry.number:
                yield range(first, entry.number)
            is_known = False
        elif not is_known and entry.is_whole:
            first, is_known = entry.number, True
    if is_known:
        yield range(first, head.last + 1)


def after_step(sequence: StoredSequence, head: RecordHead, step: int) -> Earlier:
    """Return what a sequence with this head had after a step. Raises NoStateThere."""
    if sequence.closed:
        raise NoStateThere(f"the sequence is over ({sequence.closed}), and its state is gone")
    possible = steps_with_state(sequence)
    if not any(step in run for run in possible):
        raise NoStateThere(f"there is no state after step {step}; the store has its state after {_named(possible)}")
    log = [entry for entry in sequence.log if entry.number <= step]
    checkpoint = Checkpoint(head.checkpoint, head.state_checksum, head.log_from if log else 0)
    return Earlier(
        NO_STATE if sequence.state is None and not log else checkpoint,
        log,
        _ids_until(step, head, sequence.ids),
        [each for each in sequence.answers if each.step.number <= step],
    )


def _named(runs: Sequence[range]) -> str:
    if len(runs) == 1 and len(runs[0]) == 1:
        return f"step {runs[0][0]}"
    return "steps " + ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _ids_until(step: int, head: RecordHead, ids: bytes) -> bytes:
    """Return the digests of the request ids of the steps until this one.

    Where some steps had numbers, or some ids are forgotten, nothing tells which steps the ids are of: all of them stay,
    since an id that is refused harms less than a step that is applied twice.
    """
    return ids[: step * DIGEST_SIZE] if len(ids) == head.last * DIGEST_SIZE else ids
