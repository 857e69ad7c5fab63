"""Deferred work of connections: some of it runs in each turn of the event loop, one connection after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

#: How long deferred work may take in one turn of the event loop (seconds); at least one connection's work runs.
_TURN: Final = 0.004


class Turns:
    """Runs deferred work in order, with a time limit per turn, so that it does not block the event loop.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def put_off(self, work: Callable[[], None]) -> None:
        """Call ``work`` in the next turn, or in a later one if earlier work uses up that turn's time."""
        self._waiting.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        due = len(self._waiting)  # work deferred while this runs waits for another turn
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
