"""Changes of what is served, which run to their end without their callers: half a registration is of no use."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from torchserve_py.core.serving.errors import ShuttingDown

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Changes:
    """The changes that run."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, change: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a change as a task."""
        task = asyncio.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def complete(self, change: Coroutine[Any, Any, T]) -> T:
        """Complete a change; if the caller is cancelled, the change goes on, and its failure is logged.

        Raises ShuttingDown: the change was cancelled.
        """
        task = self.start(change)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ShuttingDown from None
            task.add_done_callback(_log_failure)
            raise

    def cancel(self) -> None:
        """Cancel all changes."""
        for change in self._running:
            change.cancel()

    async def wait(self, limit: float) -> None:
        """Wait until all changes have ended, at most ``limit`` seconds."""
        if self._running:
            await asyncio.wait(self._running, timeout=limit)


def _log_failure(change: asyncio.Task[Any]) -> None:
    if not change.cancelled() and (error := change.exception()) is not None:
        logger.error("A change failed after its client had disconnected: %s", error)
