"""Questions to a worker that are not queued behind its jobs: is the model well, what has its code counted?"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from ts.protocol.frames import Buffer, encode


class Questions:
    """What one worker was asked and has not answered yet; ``ended`` is done once it is gone."""

    def __init__(self, send: Callable[[list[Buffer]], None], ended: asyncio.Future[Any]) -> None:
        self._send = send
        self._ended = ended
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, kind: str, limit: float) -> Any:
        """Ask; None if the worker goes away, or does not answer within ``limit`` seconds."""
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(encode([kind, number]))
            await asyncio.wait([answer, self._ended], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            del self._open[number]

    def answered(self, number: int, value: Any) -> None:
        """Take an answer; one that comes too late is dropped."""
        answer = self._open.get(number)
        if answer is not None and not answer.done():
            answer.set_result(value)
