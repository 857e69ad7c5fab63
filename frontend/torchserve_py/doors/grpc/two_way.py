"""Calls that read requests and answer them at the same time, and how the server closes those that are open."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from torchserve_py.doors.errors import DoorError, failure_of_job
from torchserve_py.doors.grpc.calls import Context
from torchserve_py.doors.grpc.writer import Writer
from torchserve_py.scheduling.effects import Cause


class TwoWayCall(ABC):
    """One call. Its tasks are in `_tasks`: one reads, others answer; where one fails, all end.

    Args:
        context: The call as gRPC has it.
        writer: Writes its messages.
    """

    def __init__(self, context: Context, writer: Writer) -> None:
        self._context = context
        self._tasks = asyncio.TaskGroup()
        self._reader: asyncio.Task[None] | None = None
        self._closed = False
        self._writer = writer
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Carry the call to its end; every job of it has ended, or is cancelled, when this returns or raises.

        Raises:
            DoorError: The server shuts down.
        """
        try:
            async with self._tasks:
                self._reader = self._tasks.create_task(self._read())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._writer.close()
            self._cancel_jobs()
        if self._closed:
            raise DoorError(failure_of_job(Cause.draining, "", None))

    def close(self) -> None:
        """Read no more; end when all is answered."""
        self._closed = True
        if self._reader is not None:
            self._reader.cancel()

    async def _write(self, message: Any) -> None:
        async with self._writing:  # gRPC takes one message at a time
            await self._writer.write(message)

    @abstractmethod
    async def _read(self) -> None:
        """Take requests, to the last one."""

    @abstractmethod
    def _cancel_jobs(self) -> None:
        """Give up the jobs that have not ended."""


class OpenCalls:
    """The calls of a method that are open."""

    def __init__(self) -> None:
        self._calls: set[TwoWayCall] = set()

    async def run(self, call: TwoWayCall) -> None:
        """Carry a call to its end; raises what `TwoWayCall.run` raises."""
        self._calls.add(call)
        try:
            await call.run()
        finally:
            self._calls.discard(call)

    def close(self) -> None:
        """Read no more requests; calls end when what they have is answered."""
        for call in self._calls:
            call.close()
