"""Writing the messages of one call, and giving up a client that has stopped reading.

A message is written when the client has made room for it. One timer per call watches over that, not one per message:
streams are the hot path.
"""

from __future__ import annotations

import asyncio
from typing import Any

from torchserve_py.doors.errors import DoorError, Failure
from torchserve_py.doors.grpc.calls import Context


class ReaderStalledError(DoorError):
    """The client has stopped reading."""

    def __init__(self, limit: float) -> None:
        message = f"The client has read nothing for {limit:g} seconds."
        super().__init__(Failure(504, "RequestTimeoutException", message))


class Writer:
    """Writes to one client, until it is closed.

    Args:
        context: The call.
        limit: How many seconds a message may wait for the client.
    """

    def __init__(self, context: Context, limit: float) -> None:
        self._context = context
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stalled = False
        self._timer = self._loop.call_later(limit, self._check)

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()

    async def write(self, message: Any) -> None:
        """Write a message; only one at a time.

        Raises:
            ReaderStalledError: The client does not make room for it.
        """
        self._task = asyncio.current_task()
        self._since = self._loop.time()
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if not self._stalled:
                raise
            if self._task is not None:
                self._task.uncancel()
            raise ReaderStalledError(self._limit) from None
        finally:
            self._since = None

    def _check(self) -> None:
        now = self._loop.time()
        since = now if self._since is None else self._since
        if now - since >= self._limit and self._task is not None:
            self._stalled = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(since + self._limit, self._check)
