"""Generators of a model as streams of chunks: pulled one by one, each as soon as the one before it was sent.

Nothing is buffered here: a frontend whose client reads slowly buffers up to its limit and then slows the worker down.
A generator that takes too long for a chunk, or whose client has left, is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, Protocol

from ts.runtimes.truss.client import Client
from ts.runtimes.truss.threads import Threads, Work

logger = logging.getLogger(__name__)

#: What `Chunks.next` returns when there are no more.
END: Final = object()

#: How long a generator that was given the request may go on when its client has left (seconds), because it may be about
#: to ask; and how long if it did ask, because then it ends in its own way.
_PATIENCE: Final = 1.0
_PATIENCE_WITH_POLLING: Final = 10.0
#: How long the cleaning up of an asynchronous generator may take (seconds).
_CLOSING_LIMIT: Final = 30.0


class GapTooLong(Exception):
    """The model took longer for a chunk than it may."""


class Chunks(Protocol):
    """A generator of the model."""

    async def next(self) -> Any:
        """Return the next chunk, `END` behind the last."""

    async def close(self) -> None:
        """Have the generator clean up, unless it has ended."""


class AsyncChunks:
    """An asynchronous generator; it runs in the event loop."""

    def __init__(self, generator: AsyncGenerator[Any, None]) -> None:
        self._generator = generator

    async def next(self) -> Any:
        """Return the next chunk, `END` behind the last."""
        return await anext(self._generator, END)

    async def close(self) -> None:
        """Have the generator clean up, unless it has ended."""
        async with asyncio.timeout(_CLOSING_LIMIT):
            await self._generator.aclose()


class ThreadChunks:
    """A generator that may block; each step of it runs in a thread."""

    def __init__(self, generator: Generator[Any, None, None], threads: Threads) -> None:
        self._generator = generator
        self._threads = threads
        self._running: Work[Any] | None = None

    async def next(self) -> Any:
        """Return the next chunk, `END` behind the last. If this is cancelled, the thread goes on."""
        self._running = Work(next, self._generator, END)
        self._threads.start(self._running)
        await self._running.ended()
        return self._running.outcome()

    async def close(self) -> None:
        """Have the generator clean up once its thread has come back, unless it has ended."""
        if self._running is not None:
            await self._running.ended()  # what it raised is the model's last word to a client that has left
        await self._threads.run(self._generator.close)


def is_stream(value: Any) -> bool:
    """Tell whether what a method returned is a stream."""
    return isinstance(value, AsyncGeneratorType | GeneratorType)


def chunks_of(generator: Any, threads: Threads) -> Chunks:
    """Return the chunks of a generator; a plain one runs in ``threads``."""
    return AsyncChunks(generator) if isinstance(generator, AsyncGeneratorType) else ThreadChunks(generator, threads)


async def pull(
    chunks: Chunks, take: Callable[[Any], None], client: Client, *, gap: float | None, may_ask: bool
) -> None:
    """Give each chunk to ``take`` until there are no more, or until the client leaves.

    Args:
        chunks: Where they come from; they are to be closed afterwards, however this ends.
        take: Called at once for each chunk.
        client: Who they are for.
        gap: The longest time in seconds that the model may take for a chunk; None for any.
        may_ask: Whether the model may ask whether the client has left, and is to be given time for it.

    Raises:
        GapTooLong: It took longer.
        BaseException: Whatever the model raises.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(gap)

    def hurry() -> None:
        if not limit.expired():
            limit.reschedule(loop.time() + _patience(client, may_ask=may_ask))

    try:
        async with limit:
            with client.telling(hurry):
                while (chunk := await chunks.next()) is not END and not limit.expired():
                    if not client.left:
                        take(chunk)
                        if gap is not None:
                            limit.reschedule(loop.time() + gap)
                    await asyncio.sleep(0)  # a generator that never waits must not hold up the others
    except TimeoutError:
        if not limit.expired():
            raise  # it is the model's own
        if not client.left:
            raise GapTooLong from None


async def close(chunks: Chunks) -> None:
    """Close a generator; what it raises then is logged."""
    try:
        await chunks.close()
    except Exception:
        logger.exception("A generator of the model failed while it was closed")


def _patience(client: Client, *, may_ask: bool) -> float:
    if not may_ask:
        return 0.0
    return _PATIENCE_WITH_POLLING if client.was_asked_for else _PATIENCE
