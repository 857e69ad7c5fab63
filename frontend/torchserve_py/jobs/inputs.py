"""The further inputs of a job that takes several: a door writes them, and the worker of the job gets them.

A model that is slower than its client slows the client down: only so many inputs may be under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

#: Inputs of one job that may wait for the model, in the frontend, in the socket and in the worker together.
MAX_UNTAKEN: Final = 16
#: What they may have together (bytes), unless it is a single one.
MAX_UNTAKEN_BYTES: Final = 32 << 20

#: ``(more, body)``; ``more`` tells whether others follow.
Input = tuple[bool, bytes]


class Inputs:
    """The further inputs of one job; they are held until the job has a worker."""

    def __init__(self, pass_on: Callable[[Input], bool]) -> None:
        self._pass_on = pass_on  # sends one to the worker; returns False while there is no worker
        self._held: list[Input] = []
        self._untaken: deque[int] = deque()  # their sizes
        self._ended = False
        self._room: asyncio.Future[None] | None = None

    async def send(self, body: bytes, *, more: bool) -> None:
        """Pass an input on, once there is room for it; does nothing when the job has ended."""
        while self._is_full and not self._ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._ended:
            return
        self._untaken.append(len(body))
        if self._held or not self._pass_on((more, body)):
            self._held.append((more, body))

    def take_held(self) -> Sequence[Input]:
        """Return the inputs that were held until the job had a worker."""
        held, self._held = self._held, []
        return held

    def taken(self, count: int) -> None:
        """Note that the model has taken ``count`` inputs."""
        for _ in range(min(count, len(self._untaken))):
            self._untaken.popleft()
        self._wake()

    def end(self) -> None:
        """End with the job: later inputs are dropped."""
        self._ended = True
        self._wake()

    @property
    def _is_full(self) -> bool:
        return len(self._untaken) >= MAX_UNTAKEN or sum(self._untaken) >= MAX_UNTAKEN_BYTES

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
