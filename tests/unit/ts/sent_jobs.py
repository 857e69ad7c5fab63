"""The frontend's side of a runtime's connection without a socket: jobs that were sent, and the rows that come back."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ts.contracts.async_calls.async_runtime import NO_INPUTS, FurtherInputs
from ts.protocol.messages import InferRow

DEADLINE = 60.0


class FakeConnection:
    """Takes what a runtime sends."""

    def __init__(self) -> None:
        self.cancelled: set[str] = set()
        self.rows: dict[str, list[Any]] = defaultdict(list)
        self.messages: list[list[Any]] = []
        self.metrics: list[Any] = []
        self.changed = asyncio.Event()

    def send_results(self, rows: Sequence[Any], seconds: float, metrics: Sequence[Any] = ()) -> None:
        for row in rows:
            self.rows[row[0]].append(row)
        self.metrics += metrics
        self.changed.set()

    def send(self, message: list[Any]) -> None:
        self.messages.append(message)
        self.changed.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds that depends on what is sent."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class SentJob:
    """One request that was sent to a runtime."""

    def __init__(self, runtime: Any, connection: FakeConnection, row: InferRow) -> None:
        self.id = row.job_id
        self._inputs = FurtherInputs() if row.more_input else NO_INPUTS
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(runtime.run_job(row, self._inputs))
        self._runtime = runtime
        self._connection = connection

    @property
    def rows(self) -> list[Any]:
        return self._connection.rows[self.id]

    @property
    def is_done(self) -> bool:
        return bool(self.rows) and not self.rows[-1][1]

    async def first_rows(self, count: int) -> list[Any]:
        """Wait for so many rows; return all that have come."""
        await self._connection.until(lambda: len(self.rows) >= count)
        return self.rows

    async def all_rows(self) -> list[Any]:
        """Wait for the last row, and for the end of the job."""
        await self._connection.until(lambda: self.is_done)
        await self.task
        return self.rows

    def leave(self) -> None:
        """The client goes away."""
        self._connection.cancelled.add(self.id)
        self._runtime.cancel_job(self.id, self.task)

    def send(self, body: bytes, *, more: bool = True) -> None:
        """Send a further input."""
        self._inputs.put(body, more=more)
