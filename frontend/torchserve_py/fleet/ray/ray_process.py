"""A worker process on a node of a Ray cluster: its start, what it prints, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.core.workers.process import describe_exit, log_lines
from torchserve_py.fleet.ray.ray_calls import RayCalls, RayError
from ts.fleet.ray.ray_host import STDERR, STDOUT

logger = logging.getLogger(__name__)

#: How long Ray may take to tell of the end of a worker that was killed (seconds).
_KILL_LIMIT: Final = 5.0
#: Pieces of output that wait to be logged.
_MOST_UNREAD: Final = 32


class RemoteProcess:
    """A worker process on a node: that of the actor with this number."""

    pid = -1  # its number means nothing on this machine

    def __init__(self, ray: RayCalls, number: int, label: str, worker_id: str) -> None:
        self._ray = ray
        self._number = number
        #: Whether its node, or the actor there, was lost: then nobody has killed it, and no process has ended.
        self.is_lost = False
        self._killed = asyncio.Event()
        self._ended: asyncio.Task[int] = asyncio.create_task(ray.call("run", number))
        streams = {STDOUT: OutputStream(), STDERR: OutputStream()}
        self._output = asyncio.gather(
            self._read(streams),
            log_lines(streams[STDOUT], "stdout", label, worker_id),
            log_lines(streams[STDERR], "stderr", label, worker_id),
        )

    def adopt(self, pid: int) -> None:
        """Do nothing: the processes of a worker end with its actor."""

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return not self._ended.done() and not self._killed.is_set()

    async def wait(self) -> str:
        """Wait for the end of the process and of its output; return why it ended."""
        killed: asyncio.Future[Any] = asyncio.create_task(self._killed.wait())
        await asyncio.wait([self._ended, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        await asyncio.wait([self._ended], timeout=_KILL_LIMIT)
        await asyncio.wait([self._output], timeout=1.0)
        self._output.cancel()
        self._ray.tell("end", self._number)
        if not self._ended.done():
            self._ended.cancel()
            self.is_lost = True
            return "was given up with its node, which does not answer"
        if (error := self._ended.exception()) is not None:
            self.is_lost = True
            return f"was lost with its node or the actor there: {error}"
        return describe_exit(self._ended.result())

    def kill(self) -> None:
        """Have the actor end the process; `wait` ends an actor that does not answer."""
        if self.running:
            self._killed.set()
            self._ray.tell("kill", self._number)

    async def _read(self, streams: Mapping[int, OutputStream]) -> None:
        try:
            while True:
                for number, data in await self._ray.call("output", self._number):
                    if number not in streams:
                        return
                    await streams[number].pieces.put(data)
        except RayError as error:  # `wait` says why
            logger.debug("The output of a worker has ended: %s", error)
        finally:
            for stream in streams.values():
                await stream.pieces.put(b"")


class OutputStream:
    """What a process on a node prints."""

    def __init__(self) -> None:
        self.pieces = asyncio.Queue[bytes](_MOST_UNREAD)

    async def read(self, n: int, /) -> bytes:
        """Wait for further output, as it arrived; b"" at its end."""
        return await self.pieces.get()
