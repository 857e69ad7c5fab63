"""Threads for the files of left sequences: a disk that hangs holds up these threads, and nothing else of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from torchserve_py.base.daemon_threads import DaemonThreads

T = TypeVar("T")

#: How many threads there are at most. The others of the server are for what cannot hang together with this disk.
_MOST: Final = 4


class Disk:
    """Runs what blocks, for the event loop."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(_MOST)

    async def run(self, call: Callable[[], T], limit: float) -> T:
        """Return what a call returns, within ``limit`` seconds.

        Raises what the call raises, and TimeoutError. A call that has begun by then goes on in its thread; another one
        is never made.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(limit):
            return await loop.run_in_executor(self._threads, call)
