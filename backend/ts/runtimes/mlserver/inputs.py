"""The stream of requests that a ``predict_stream`` reads from: the job's first input and those that follow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from ts.runtimes.mlserver.api import types


class FurtherInputs:
    """The inputs of a job that have arrived behind its first, and that the model has not taken."""

    def __init__(self, *, more: bool) -> None:
        self._more = more
        self._bodies: deque[bytes] = deque()
        self._changed = asyncio.Event()

    def put(self, body: bytes, *, more: bool) -> None:
        """Append an input. An empty one that is the last only ends the stream."""
        if body or more:
            self._bodies.append(body)
        self._more = more
        self._changed.set()

    async def take(self) -> bytes | None:
        """Return the next input once it is there; None after the last."""
        while not self._bodies:
            if not self._more:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._bodies.popleft()


class Inputs(AsyncIterator[types.InferenceRequest]):
    """An asynchronous iterator over requests. Inputs are decoded when the model takes them, not before.

    Args:
        decode: Makes a request of a further input, which the model has taken now; what it raises comes out of the
            iterator.
    """

    def __init__(
        self,
        first: types.InferenceRequest,
        further: FurtherInputs,
        decode: Callable[[bytes], types.InferenceRequest],
    ) -> None:
        self._first: types.InferenceRequest | None = first
        self._further = further
        self._decode = decode

    async def __anext__(self) -> types.InferenceRequest:
        """Return the next request, once it is there."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        body = await self._further.take()
        if body is None:
            raise StopAsyncIteration
        return self._decode(body)
