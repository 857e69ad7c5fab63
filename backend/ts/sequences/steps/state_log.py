"""The log of a sequence: what its steps have appended since its state was stored whole, in the form that stores keep.

Each step since then has one piece in the log, even if it has appended nothing: so it is noticed if one is missing.

Where earlier states are kept, a state that is stored whole is a piece of the log as well, in the place of what its step
has appended: the state of the sequence is the latest of these, and what was appended since. It names the earlier ones,
so that a worker that takes the sequence over reads no more than that.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from ts.sequences.steps.record import Damaged, RecordHead, seal, unseal

_pack: Final = msgpack.Packer().pack
#: What a piece with a state begins with. An encoded list never does: msgpack does not use this byte.
_WHOLE: Final = b"\xc1"
#: How many earlier states a piece with a state names, behind that; then come their numbers, and the state.
_COUNT: Final = struct.Struct("<I")
_NUMBERS_AT: Final = len(_WHOLE) + _COUNT.size
_NUMBER_SIZE: Final = 8


class LogEntry(NamedTuple):
    """What one step has appended; ``entries`` is an encoded list. Or the state after the step; see `whole_entry`."""

    number: int  # of the step
    entries: bytes

    @property
    def is_whole(self) -> bool:
        """Whether this is the state after the step."""
        return self.entries.startswith(_WHOLE) and len(self.entries) >= _NUMBERS_AT

    @property
    def state(self) -> bytes | None:
        """The state after the step, if it was stored whole."""
        return self.entries[self._state_at :] if self.is_whole else None

    @property
    def earlier(self) -> Sequence[int]:
        """The numbers of earlier steps whose states were stored whole and kept, in order; none if this is no state."""
        return struct.unpack_from(f"<{self._count}q", self.entries, _NUMBERS_AT) if self.is_whole else ()

    @property
    def _count(self) -> int:
        return int(_COUNT.unpack_from(self.entries, len(_WHOLE))[0])

    @property
    def _state_at(self) -> int:
        return _NUMBERS_AT + self._count * _NUMBER_SIZE

    @property
    def is_gap(self) -> bool:
        """Whether nothing tells the state after the step; see `gap`."""
        return self.entries == _WHOLE

    @property
    def is_sound(self) -> bool:
        """Whether this has all that it says: it may come from elsewhere."""
        if not self.is_whole:
            return self.is_gap or not self.entries.startswith(_WHOLE)
        return len(self.entries) > self._state_at and all(0 < each < self.number for each in self.earlier)


def whole_entry(number: int, state: bytes, earlier: Sequence[int]) -> LogEntry:
    """Return the piece of a step after which the state is stored whole; ``earlier`` are the steps of kept ones."""
    numbers = struct.pack(f"<{len(earlier)}q", *earlier)
    return LogEntry(number, b"".join((_WHOLE, _COUNT.pack(len(earlier)), numbers, state)))


def gap(number: int) -> LogEntry:
    """Return the piece of a step after which the state was not stored, or is damaged; a whole state follows it."""
    return LogEntry(number, _WHOLE)


class LogAfterState(NamedTuple):
    """The latest state that was stored whole, None if none was, and what was appended since then."""

    state: bytes | None
    log: Sequence[LogEntry]


def since_latest_state(state: bytes | None, log: Sequence[LogEntry]) -> LogAfterState:
    """Return what the state of a sequence is made of.

    Args:
        state: The one before the log.
    """
    place = latest_whole(log)
    return LogAfterState(state, log) if place is None else LogAfterState(log[place].state, log[place + 1 :])


def latest_whole(log: Sequence[LogEntry]) -> int | None:
    """Return the place of the latest state in a log, None if it has none."""
    return next((place for place in range(len(log) - 1, -1, -1) if log[place].is_whole), None)


def pack_entry(incarnation: int, number: int, entries: bytes, owner: int = 0) -> bytes:
    """Return a sealed piece of a log; ``owner`` is the number of the sequence in a store that has such."""
    return seal(_pack((owner, incarnation, number, entries)))


def unpack_entry(sealed: Any, incarnation: int, owner: int = 0) -> LogEntry:
    """Return the piece of this log. Raises Damaged: it is something else."""
    try:
        of, in_incarnation, number, entries = msgpack.unpackb(unseal(sealed), max_array_len=4, max_map_len=0)
        if (of, in_incarnation) == (owner, incarnation):
            return LogEntry(int(number), bytes(entries))
    except Damaged as damage:
        raise Damaged(f"an entry of its log cannot be read: {damage}") from damage
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise Damaged(f"an entry of its log is unreadable: {error or type(error).__name__}") from error
    raise Damaged("an entry of its log belongs to another sequence")


def read_log(
    head: RecordHead, pieces: Iterable[Any], owner: int = 0, problems: list[str] | None = None
) -> list[LogEntry]:
    """Return the log of a sequence with this head. Raises Damaged: a piece is missing or cannot be read.

    A piece that cannot be read costs no more than itself if a later one has the state whole: it is a gap.

    Args:
        problems: Gets what is wrong with such pieces.
    """
    if not head.log_from:
        return []
    wanted = range(head.log_from, head.last + 1)
    log: list[LogEntry] = []
    unreadable: Damaged | None = None
    for place, piece in enumerate(pieces):
        try:
            entry = unpack_entry(piece, head.incarnation, owner)
        except Damaged as damage:
            log.append(gap(head.log_from + place))
            unreadable = unreadable or damage
            continue
        log.append(entry)
        if entry.is_whole and unreadable is not None:
            if problems is not None:
                problems.append(f"{unreadable}; its present state is readable")
            unreadable = None
    if unreadable is not None:
        raise unreadable
    _check_order(log, wanted)
    return log


def read_latest(head: RecordHead, backwards: Iterable[Any], owner: int = 0) -> list[LogEntry]:
    """Return the latest state in the log of a sequence with this head, and what follows; the whole log if it has none.

    Raises Damaged: one of these pieces is missing or cannot be read.

    Args:
        backwards: The pieces of the log, the last one first; no more are read than are needed.
    """
    if not head.log_from:
        return []
    log: list[LogEntry] = []
    for piece in backwards:
        log.append(unpack_entry(piece, head.incarnation, owner))
        if log[-1].is_whole:
            break
    log.reverse()
    first = max(head.log_from, log[0].number) if log and log[0].is_whole else head.log_from
    _check_order(log, range(first, head.last + 1))
    return log


def _check_order(log: Sequence[LogEntry], wanted: range) -> None:
    if [each.number for each in log] != [*wanted]:
        missing = sorted({*wanted} - {each.number for each in log})
        what = f"of step {missing[0]} are missing" if missing else "are not in order"
        raise Damaged(f"the entries of its log {what}")
