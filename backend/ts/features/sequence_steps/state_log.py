"""The log of a sequence: what its steps have appended since its state was stored whole, in the form that stores keep.

Each step since then has one piece in the log, even if it has appended nothing: so it is noticed if one is missing.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgpack

from ts.features.sequence_steps.record import Damaged, Head, seal, unseal

_pack: Final = msgpack.Packer().pack


class LogEntry(NamedTuple):
    """What one step has appended; ``entries`` is an encoded list."""

    number: int  # of the step
    entries: bytes


def pack_entry(incarnation: int, number: int, entries: bytes, owner: int = 0) -> bytes:
    """Return a sealed piece of a log; ``owner`` is the number of the sequence in a store that has such."""
    return seal(_pack((owner, incarnation, number, entries)))


def unpack_entry(sealed: Any, incarnation: int, owner: int = 0) -> LogEntry:
    """Return the piece of this log. Raises Damaged: it is something else."""
    try:
        of, in_incarnation, number, entries = msgpack.unpackb(unseal(sealed))
        if (of, in_incarnation) == (owner, incarnation):
            return LogEntry(int(number), bytes(entries))
    except Damaged as damage:
        raise Damaged(f"an entry of its log cannot be read: {damage}") from damage
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"an entry of its log is unreadable: {error or type(error).__name__}") from error
    raise Damaged("an entry of its log belongs to another sequence")


def read_log(head: Head, pieces: Iterable[Any], owner: int = 0) -> list[LogEntry]:
    """Return the log of a sequence with this head. Raises Damaged: a piece is missing or cannot be read."""
    if not head.log_from:
        return []
    log = [unpack_entry(piece, head.incarnation, owner) for piece in pieces]
    wanted = range(head.log_from, head.last + 1)
    if [each.number for each in log] != [*wanted]:
        missing = sorted({*wanted} - {each.number for each in log})
        what = f"of step {missing[0]} are missing" if missing else "are not in order"
        raise Damaged(f"the entries of its log {what}")
    return log
