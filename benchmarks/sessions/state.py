"""The state of a session on every server that is measured: how many steps were counted, and which, in which order."""

from __future__ import annotations

from typing import NamedTuple

_FACTOR, _MODULUS = 31, 2**31 - 1


class State(NamedTuple):
    """The state after some steps; a model answers each step with its text, ``COUNT CHECKSUM``."""

    count: int = 0
    checksum: int = 0

    def after(self, number: int) -> State:
        """Return the state after one more step. The checksum depends on the order of the numbers."""
        return State(self.count + 1, (self.checksum * _FACTOR + number) % _MODULUS)

    @classmethod
    def of(cls, text: str) -> State:
        """Return the state of a text. Raises ValueError: it is none."""
        count, checksum = text.split()
        return cls(int(count), int(checksum))
