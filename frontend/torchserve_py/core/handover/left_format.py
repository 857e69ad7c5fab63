"""How a sequence is written that a server leaves in memory: nothing of it is code.

It has a line that names the format, the CRC-32 of what follows, what is known of the sequence as msgpack behind its
length (`Known`), and what its worker gave (`ts.sequences.handover`).
"""

from __future__ import annotations

import math
import struct
import time
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgpack

from torchserve_py.core.handover.storage import Known
from torchserve_py.core.scheduling.sequence_source import LeftSequence

_FIRST_LINE: Final = b"torchserve-py left sequence 1\n"
_NUMBER: Final = struct.Struct(">I")
#: How many bytes tell how many more `known_in` needs.
HEAD_SIZE: Final = len(_FIRST_LINE) + 2 * _NUMBER.size


class Damaged(ValueError):
    """What was written cannot be read; the message says why."""


class Left(NamedTuple):
    """A sequence that another server has left: what its scheduler and its worker knew of it.

    Attributes:
        version: The version that it is of.
        is_over: Whether it has been idle for too long.
    """

    version: str
    sequence: LeftSequence
    given: memoryview
    is_over: bool


def packed(known: Known, given: Iterable[bytes]) -> list[bytes]:
    """Return what is written of a sequence."""
    head = msgpack.packb(known)
    parts = [_NUMBER.pack(len(head)), head, *given]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_FIRST_LINE, _NUMBER.pack(checksum), *parts]


def known_size(head: bytes) -> int | None:
    """Return how many bytes follow the first ``HEAD_SIZE`` ones that say what is known; None if they are damaged."""
    if not head.startswith(_FIRST_LINE) or len(head) < HEAD_SIZE:
        return None
    size: int = _NUMBER.unpack(head[-_NUMBER.size :])[0]
    return size


def known_in(content: bytes) -> Known | None:
    """Return what was known of a sequence; None if it cannot be read."""
    try:
        known = Known(*msgpack.unpackb(content))
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return known if isinstance(known.version, str) and isinstance(known.ends_at, float) else None


def unpacked(content: bytes) -> Left:
    """Return a sequence that was written. Raises Damaged."""
    line, rest = content[: len(_FIRST_LINE)], memoryview(content)[len(_FIRST_LINE) :]
    if line != _FIRST_LINE:
        raise Damaged(f"it begins with {line!r} instead of {_FIRST_LINE!r}")
    checked = rest[_NUMBER.size :]
    if len(checked) < _NUMBER.size or _NUMBER.pack(zlib.crc32(checked)) != rest[: _NUMBER.size]:
        raise Damaged("its checksum is wrong")
    end = _NUMBER.size + _NUMBER.unpack_from(checked)[0]
    known = known_in(bytes(checked[_NUMBER.size : end]))
    if known is None:
        raise Damaged("it does not say what it is")
    time_left = math.inf if known.time_left is None else known.time_left
    sequence = LeftSequence(tuple(known.tokens), time_left)
    return Left(known.version, sequence, checked[end:], known.ends_at <= time.time())
