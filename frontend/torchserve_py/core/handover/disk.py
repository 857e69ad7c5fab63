"""Threads for where sequences are left: a disk that hangs holds up these threads, and nothing else of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from torchserve_py.base.daemon_threads import DaemonThreads
from torchserve_py.net.running_time import running_time

T = TypeVar("T")

#: How many threads there are at most. The others of the server are for what cannot hang together with this disk.
_MOST: Final = 4


class NoAnswer(TimeoutError):
    """A call has no answer in time, or is not made since an earlier one has none."""


class Disk:
    """Runs what blocks, for the event loop. While a call gives no answer, no further one is made."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(_MOST)
        #: Held by calls: what waits for a thread is not late.
        self._turns = asyncio.Semaphore(_MOST)
        self._hung = 0

    @property
    def hangs(self) -> bool:
        """Whether a call has no answer yet that is late, so that no further one is made."""
        return bool(self._hung)

    async def run(self, call: Callable[[], T], limit: float, more: Callable[[], float] = lambda: 0.0) -> T:
        """Return what a call returns that takes ``limit`` seconds at most, and then as many as ``more`` returns.

        Raises what the call raises, and NoAnswer: a call that has no answer by then is left to its thread.
        """
        async with self._turns:
            if self.hangs:
                raise NoAnswer("an earlier call has no answer yet")
            asked = asyncio.get_running_loop().run_in_executor(self._threads, call)
            await running_time().wait([asked], limit)  # while the server is frozen, the disk is not late
            if not asked.done() and (further := more()):
                await running_time().wait([asked], further)
        if asked.done():
            return asked.result()
        self._hung += 1
        asked.add_done_callback(self._answers)
        raise NoAnswer(f"no answer within {limit:g} s")

    def _answers(self, asked: asyncio.Future[T]) -> None:
        """Take note of an answer that comes too late for anybody."""
        self._hung -= 1
        if not asked.cancelled():
            asked.exception()
