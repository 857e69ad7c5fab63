"""Sends what a model answers in parts: chunks of its generators, and Starlette (and FastAPI) responses of its own.

This module buffers nothing: the frontend buffers up to its limit for a slow client, and then slows the worker down.
A generator that takes too long for a chunk, or whose client has left, is closed; so is the body of a response.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

import anyio.to_thread
from starlette.responses import Response, StreamingResponse

from ts.contracts.truss.model_request import ModelRequest, TrussClient
from ts.contracts.truss.reply import CLIENT_ERROR, Headers, Reply, TrussAnswer, error_headers
from ts.contracts.truss.slots import Slot
from ts.contracts.truss.threads import MOST_THREADS, ThreadCall, Threads
from ts.handler_utils.asgi_scope import response_sender
from ts.protocol.frames import Buffer

logger = logging.getLogger(__name__)

#: The value that `Chunks.next` returns after the last chunk.
END: Final = object()

#: How long (seconds) a generator that has the request may continue after its client has left, because its code may be
#: about to check for the client; and how long if the code has checked before, because it then ends by itself.
_PATIENCE: Final = 1.0
_PATIENCE_WITH_POLLING: Final = 10.0
#: The time limit for closing an asynchronous generator (seconds).
_CLOSING_LIMIT: Final = 30.0
_REDIRECTION: Final = 300


class GapTooLong(Exception):
    """The model exceeded the time limit for the next chunk."""


class AsyncChunks:
    """An asynchronous generator; it runs in the event loop."""

    def __init__(self, generator: AsyncGenerator[Any, None]) -> None:
        self._generator = generator

    async def next(self) -> Any:
        return await anext(self._generator, END)

    async def close(self) -> None:
        async with asyncio.timeout(_CLOSING_LIMIT):
            await self._generator.aclose()


class ThreadChunks:
    """A generator that may block; each step of it runs in a thread."""

    def __init__(self, generator: Generator[Any, None, None], threads: Threads) -> None:
        self._generator = generator
        self._threads = threads
        self._running: ThreadCall[Any] | None = None

    async def next(self) -> Any:
        """Return the next chunk, `END` behind the last. Cancelling this coroutine does not stop the thread."""
        self._running = ThreadCall(next, self._generator, END)
        self._threads.start(self._running)
        await self._running.ended()
        return self._running.outcome()

    async def close(self) -> None:
        """Close the generator, after its running step has ended, unless the generator has ended."""
        if self._running is not None:
            await self._running.ended()  # drop an exception of this step: the client that it concerns has left
        await self._threads.run(self._generator.close)


Chunks = AsyncChunks | ThreadChunks


def is_stream(value: Any) -> bool:
    """Return whether the result of a method is a stream."""
    return isinstance(value, AsyncGeneratorType | GeneratorType)


def chunks_of(generator: Any, threads: Threads) -> Chunks:
    """Return the chunks of a generator; a plain one runs in ``threads``."""
    return AsyncChunks(generator) if isinstance(generator, AsyncGeneratorType) else ThreadChunks(generator, threads)


async def pull(
    chunks: Chunks, take: Callable[[Any], None], client: TrussClient, *, gap: float | None, may_ask: bool
) -> None:
    """Pass each chunk to ``take`` until the stream ends or the client leaves; the caller closes the stream afterwards.

    Args:
        gap: The time limit in seconds for each chunk; None for no limit.
        may_ask: Whether the model's code may check for its client and so gets time to end by itself.

    Raises:
        GapTooLong: The model exceeded ``gap``.
        BaseException: The model raised it.
    """
    now = asyncio.get_running_loop().time
    async with _limited(client, gap, may_ask=may_ask) as limit:
        while (chunk := await chunks.next()) is not END and not limit.expired():
            if not client.left:
                take(chunk)
                if gap is not None:
                    limit.reschedule(now() + gap)
            await asyncio.sleep(0)  # a generator that never waits must not block other jobs


@asynccontextmanager
async def _limited(client: TrussClient, gap: float | None, *, may_ask: bool) -> AsyncIterator[asyncio.Timeout]:
    """Yield the time limit of a block, which is broken off when the client has left; see `pull`."""
    limit = asyncio.timeout(gap)

    def hurry() -> None:
        if not limit.expired():
            patience = 0.0
            if may_ask:
                patience = _PATIENCE_WITH_POLLING if client.was_asked_for else _PATIENCE
            limit.reschedule(asyncio.get_running_loop().time() + patience)

    try:
        async with limit:
            with client.calling_when_left(hurry):
                yield limit
    except TimeoutError:
        if not limit.expired():
            raise  # the model's own code raised this error
        if not client.left:
            raise GapTooLong from None


async def close(chunks: Chunks) -> None:
    """Close a generator; log an exception that it raises."""
    try:
        await chunks.close()
    except Exception:
        logger.exception("A generator of the model failed while it was closed")


async def pass_on(response: Response, request: ModelRequest, client: TrussClient, reply: Reply, slot: Slot) -> None:
    """Send a response; release ``slot`` at its end. Raises Exception: the response's body raised it."""

    def take(more: bool, status: int, headers: Headers, body: Buffer) -> None:
        if client.left:
            return
        if status >= _REDIRECTION:
            headers = (*headers, *error_headers(CLIENT_ERROR))
        if more:
            reply.part(status, headers, body)
            return
        if reply.begun:
            reply.part(status, (), body)
            reply.end(status, ())
        else:
            reply.whole(TrussAnswer(status, headers, body))
        slot.release()

    # Starlette reads plain iterators in anyio's threads, whose default limit is 40.
    anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
    try:
        async with _limited(client, None, may_ask=False):
            await response(request.scope, client.disconnected, response_sender(take))
    finally:
        if isinstance(response, StreamingResponse) and hasattr(response.body_iterator, "aclose"):
            await response.body_iterator.aclose()  # now, instead of leaving that to the garbage collector
        slot.release()
