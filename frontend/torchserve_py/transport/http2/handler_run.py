"""How the handler of a call runs: called without a task, or in one.

A handler is called without a task, and gets one only if it returns an awaitable or an iterator. It may also return
`LATER`: then something else calls `HandlerRun.follow` when the answer is known.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from grpc import StatusCode

from torchserve_py.transport.http2.methods import LATER
from torchserve_py.transport.turns import running_turns

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call


class HandlerRun:
    """The handler of one call, from the moment that it is asked for."""

    __slots__ = ("_beginning", "_call", "_task", "has_begun", "is_running")

    def __init__(self, call: Call) -> None:
        #: Whether the handler has been called.
        self.has_begun = False
        #: Whether the handler has been asked for, and has not ended.
        self.is_running = False
        self._call = call
        self._beginning: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, *, decompress: bool) -> None:
        """Call the handler in the next turn of the event loop, or when its request is decompressed."""
        self.is_running = True
        if decompress:
            self._run_in_task(self._begin_decompressed)
        else:
            self._beginning = asyncio.get_running_loop().call_soon(self._begin)

    def follow(self, result: Any) -> None:
        """Answer the call with what a handler may return: a response, what gives one in a task, or `LATER`."""
        if not self.is_running:  # the call is over
            if inspect.iscoroutine(result):
                result.close()
        elif hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            self._run_in_task(self._answer, result)
        elif result is not LATER:
            call = self._call
            try:
                call.respond(result)
            except Exception as error:
                call.raised(error)
            self.end()

    def stop(self) -> None:
        """Cancel the handler, unless it is the caller."""
        if self._task is None:
            if self._beginning is not None:
                self._beginning.cancel()
            self.end()
        elif self._task is not asyncio.current_task():
            running_turns().put_off(self._task.cancel)  # a thousand calls may end at once

    def end(self) -> None:
        """Note that the handler has ended, unless it still runs in a task."""
        if self.is_running and self._task is None:
            self.is_running = False
            self._beginning = None
            call = self._call
            del self._call  # the call knows its run: a flood of such cycles would wait for the garbage collector
            call.handler_ended()

    def _begin(self) -> None:
        if not self.is_running:
            return
        self.has_begun, call = True, self._call
        try:
            result = call.method.serve(call.next_request(), call)
        except Exception as error:
            call.raised(error)
            self.end()
        else:
            self.follow(result)

    async def _begin_decompressed(self) -> None:
        await self._call.decompress_next()
        if not self._call.is_over:
            self._task = None  # the handler is called without a task, as ever
            self._begin()

    async def _answer(self, result: Any) -> None:
        response = None
        if hasattr(result, "__aiter__"):
            async for message in result:
                await self._call.write(message)
        else:
            response = await result
        self._call.respond(response)

    def _run_in_task(self, work: Callable[..., Awaitable[None]], *results: Any) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            for result in filter(inspect.iscoroutine, results):
                result.close()  # where it was cancelled before it began
            if self._task is task:
                self._task = None
                self.end()

        self._task = asyncio.get_running_loop().create_task(self._guarded(work, *results))
        self._task.add_done_callback(ended)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *results: Any) -> None:
        call = self._call
        try:
            await work(*results)
        except asyncio.CancelledError:
            call.fail(StatusCode.CANCELLED, "The server ends the call.")
        except Exception as error:
            call.raised(error)
