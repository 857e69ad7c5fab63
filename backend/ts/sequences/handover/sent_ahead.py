"""A large state that is sent while its sequence goes on: what has changed since then, and the state put together again.

The state is encoded in parts, so that one that grows leaves the others where they were. Each is sent in pieces.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from ts.protocol.frames import Buffer
from ts.protocol.messages import STATE_PIECE

#: A state with more bytes is sent ahead; others move within a few hundredths of a second.
LARGE: Final = 2**22
#: A copy of the parts of a state, each in pieces.
Copy: TypeAlias = list[list[bytes]]


class Change(NamedTuple):
    """What has become of a state that was sent ahead.

    Attributes:
        makeup: For each part its pieces: the place among those that were sent, or, below zero, how many bytes of the
            ``rest`` it has.
        rest: The pieces that are to follow.
    """

    makeup: list[list[int]]
    rest: list[bytes]


def copy_of(parts: Iterable[Buffer]) -> Copy:
    """Return a copy of the parts of a state."""
    return [list(_pieces_of(part)) for part in parts]


def changed_since(before: Copy, parts: Iterable[Buffer]) -> Change:
    """Return how a state differs from the copy that was sent of it."""
    change = Change([], [])
    first = 0
    for index, part in enumerate(parts):
        old = before[index] if index < len(before) else []
        pieces: list[int] = []
        for number, piece in enumerate(_pieces_of(part)):
            if number < len(old) and piece == old[number]:
                pieces.append(first + number)
            else:
                pieces.append(-len(piece))
                change.rest.append(piece)
        change.makeup.append(pieces)
        first += len(old)
    return change


def put_together(makeup: Iterable[Iterable[int]], ahead: Sequence[Buffer], rest: memoryview) -> list[list[Buffer]]:
    """Return the parts of a state with this `Change`, in pieces. Raises LookupError, ValueError: others have come."""
    parts: list[list[Buffer]] = []
    at = 0
    for pieces in makeup:
        part: list[Buffer] = []
        for each in pieces:
            part.append(ahead[each] if each >= 0 else rest[at : at - each])
            at -= min(0, each)
        parts.append(part)
    if at != len(rest):
        raise ValueError(f"{len(rest)} bytes of it have come, not {at}")
    return parts


def _pieces_of(part: Buffer) -> Iterator[bytes]:
    """Yield the pieces of a part: bytes, since views of memory are compared one value at a time."""
    view = memoryview(part)
    for start in range(0, len(view), STATE_PIECE):
        yield bytes(view[start : start + STATE_PIECE])
