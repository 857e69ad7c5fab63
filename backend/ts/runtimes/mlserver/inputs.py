"""The stream of requests that a ``predict_stream`` reads from: the job's first input and those that follow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from ts.runtimes.mlserver.api import types


class Inputs(AsyncIterator[types.InferenceRequest]):
    """An asynchronous iterator over requests. Inputs are decoded when the model takes them, not before.

    Args:
        first: The job's first input.
        more: Whether others follow.
        decode: Makes a request of a further input; what it raises comes out of the iterator.
        taken: Called when the model takes a further input.
    """

    def __init__(
        self,
        first: types.InferenceRequest,
        *,
        more: bool,
        decode: Callable[[bytes], types.InferenceRequest],
        taken: Callable[[], None],
    ) -> None:
        self._first: types.InferenceRequest | None = first
        self._more = more
        self._decode = decode
        self._taken = taken
        self._bodies: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, body: bytes, *, more: bool) -> None:
        """Append a further input. An empty one that is the last only ends the stream."""
        if body or more:
            self._bodies.append(body)
        self._more = more
        self._arrived.set()

    async def __anext__(self) -> types.InferenceRequest:
        """Return the next request, once it is there."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while not self._bodies:
            if not self._more:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        body = self._bodies.popleft()
        self._taken()
        return self._decode(body)
