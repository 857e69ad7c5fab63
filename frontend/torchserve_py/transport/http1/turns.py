"""Work that connections put off: a little of it in each turn of the event loop, one connection after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

#: How long what was put off may take in one turn of the event loop (seconds), one connection's work at least.
_TURN: Final = 0.004


class Turns:
    """Runs what connections have put off, in order, so that many of them together do not keep others waiting either.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def put_off(self, work: Callable[[], None]) -> None:
        """Call ``work`` in the next turn, or in a later one if others' work fills that."""
        self._waiting.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        due = len(self._waiting)  # what is put off from here on is for another turn
        end_of_turn = self._loop.time() + _TURN
        try:
            for _ in range(due):
                self._waiting.popleft()()
                if self._loop.time() > end_of_turn:
                    return
        finally:
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._run)
