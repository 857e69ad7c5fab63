"""The connections of one worker: of its only process, or of each of its ranks when torchrun started several.

Rank 0 answers. The others get the model to load and, if ``every_rank``, the same requests in the same order; they only
send metrics. Without any one of them the worker is lost. `Questions` are not queued behind its jobs.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from torchserve_py.workers.connection import Connection
from ts.protocol.frames import Buffer, encode
from ts.protocol.messages import HEARTBEAT_CHANNEL, JOBS_CHANNEL, Hello


class Ranks:
    """The ``count`` processes of a worker; requests go to ``every_rank``, or only to rank 0."""

    def __init__(self, count: int, *, every_rank: bool) -> None:
        self.count = count
        self.every_rank = every_rank
        self._jobs: dict[int, Connection] = {}
        self._pongs: dict[Connection, float] = {}
        self._heartbeats: dict[int, Connection] = {}
        #: The ids of the processes that have connected by rank, as far as the kernel tells them.
        self.pids: dict[int, int] = {}
        self._receivers: tuple[Connection, ...] = ()

    def attach(self, connection: Connection, hello: Hello) -> None:
        """Take over a connection. Raises ValueError: its channel or rank is unknown, or connected already."""
        channel, rank = hello["channel"], hello["rank"]
        channels = {JOBS_CHANNEL: self._jobs, HEARTBEAT_CHANNEL: self._heartbeats}
        if channel not in channels or not 0 <= rank < self.count or rank in channels[channel]:
            raise ValueError(f"channel {channel!r} of rank {rank} is unknown or connected already")
        channels[channel][rank] = connection
        if connection.peer_pid is not None:
            self.pids[rank] = connection.peer_pid
        if channel == JOBS_CHANNEL and (self.every_rank or rank == 0):
            self._receivers = (*self._receivers, connection)

    @property
    def complete(self) -> bool:
        """Whether all processes have both their connections."""
        return len(self._jobs) == len(self._heartbeats) == self.count

    def send_request(self, buffers: list[Buffer]) -> None:
        """Send a frame to all that get requests."""
        for connection in self._receivers:
            connection.send(buffers)

    def send_all(self, buffers: list[Buffer]) -> None:
        """Send a frame to all processes."""
        for connection in self._jobs.values():
            connection.send(buffers)

    def cancel(self, buffers: list[Buffer]) -> None:
        """Send a cancellation, unless several processes run the same request.

        They would see it at different moments, and those that go on would wait for those that do not.
        """
        if len(self._receivers) == 1:
            self._receivers[0].send(buffers)

    def ping(self, buffers: list[Buffer]) -> None:
        """Send a frame to all processes' heartbeats."""
        for connection in self._heartbeats.values():
            connection.send(buffers)

    def heard(self, heartbeat: Connection, now: float) -> None:
        """A process has answered a ping."""
        self._pongs[heartbeat] = now

    def start_listening(self, now: float) -> None:
        """From now on pings have to be answered."""
        self._pongs = dict.fromkeys(self._heartbeats.values(), now)

    def silence(self, now: float) -> float:
        """For how many seconds the most silent process has not answered a ping."""
        return now - min(self._pongs.values())

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._jobs.values(), *self._heartbeats.values()):
            connection.close()


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
