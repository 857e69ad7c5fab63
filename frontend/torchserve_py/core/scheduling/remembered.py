"""Digests of names that are remembered for a time: 8 bytes for each, with a mark of two bits.

The latest are in a dict. When these are many, or old, they become a segment, a sorted array; a segment is forgotten as
a whole, once its latest name has been remembered for long enough, or when there are too many. So a name is remembered
for at least the time that was asked for, unless it is `forgotten` before its time, and never for much longer.
"""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import Final

#: How many names are remembered at most: 8 MB.
MOST_REMEMBERED: Final = 1_000_000
#: How many are in one segment: sorting as many takes 2 ms.
_SEGMENT: Final = 8_192
#: Into how many pieces the time is cut at least.
_PIECES: Final = 16


class Remembered:
    """Names, each with a mark from 1 to 3.

    Args:
        seconds: For how long each is remembered.
        most: How many are, at most.
        segment: How many of them are forgotten together.

    Attributes:
        forgotten: How many were forgotten before their time.
    """

    __slots__ = ("_last", "_latest", "_most", "_segment", "_segments", "_since", "_size", "forgotten", "seconds")

    def __init__(self, seconds: float, most: int = MOST_REMEMBERED, segment: int = _SEGMENT) -> None:
        self.seconds = seconds
        self.forgotten = 0
        self._most = most
        self._segment = segment
        self._latest: dict[int, tuple[int, float]] = {}
        self._since = self._last = 0.0  # when the first and the last of the latest were noted
        #: The oldest first, each with the moment at which its last name was noted.
        self._segments: list[tuple[array[int], float]] = []
        self._size = 0  # of all segments

    def __len__(self) -> int:
        return self._size + len(self._latest)

    def note(self, name: str, mark: int, now: float) -> None:
        """Remember a name from now on."""
        if self._latest and now - self._since > self.seconds / _PIECES:
            self._seal()
        if not self._latest:
            self._since = now
        self._latest[_digest(name)] = mark, now
        self._last = now
        if len(self._latest) >= self._segment:
            self._seal()
        while self._segments and (now - self._segments[0][1] > self.seconds or len(self) > self._most):
            names, noted = self._segments.pop(0)
            self._size -= len(names)
            if now - noted <= self.seconds:
                self.forgotten += len(names)

    def mark(self, name: str, now: float) -> int:
        """Return the latest mark of a name; 0 if it is not remembered."""
        if not len(self):
            return 0
        digest = _digest(name)
        found = self._latest.get(digest)
        if found is not None:
            return found[0] if now - found[1] <= self.seconds else 0
        for names, noted in reversed(self._segments):
            if now - noted > self.seconds:
                return 0
            place = bisect_left(names, digest << 2)
            if place < len(names) and names[place] >> 2 == digest:
                return names[place] & 3
        return 0

    def forget(self, name: str, now: float) -> None:
        """Forget a name."""
        if self.mark(name, now):
            self.note(name, 0, now)

    def _seal(self) -> None:
        names = array("Q", sorted(digest << 2 | mark for digest, (mark, _) in self._latest.items()))
        self._segments.append((names, self._last))
        self._size += len(names)
        self._latest = {}


def _digest(name: str) -> int:
    """Return 62 bits: with the mark they are 8 bytes."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 2
