"""Turns of sequences: of the requests that continue one, the next is sent once the one before has begun its answer.

So any number can wait here, while a sequence's own queue is short. The worker lets one of them continue the sequence;
the others get sequences of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SequenceTurns:
    """Who has the turn of each sequence, and who waits for it."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take(self, sequence: str) -> bool:
        """Take the turn of a sequence if nobody has it; return whether nobody had."""
        if sequence in self._waiting:
            return False
        self._waiting[sequence] = deque()
        return True

    async def wait(self, sequence: str) -> None:
        """Wait for the turn of a sequence, and take it."""
        if self.take(sequence):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[sequence].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.pass_on(sequence)
            raise

    def pass_on(self, sequence: str) -> None:
        """Give the turn to the next one that waits."""
        waiting = self._waiting[sequence]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[sequence]
