"""How the handler of a call runs: called without a task, or in one.

A handler that takes one message is called without a task, and gets one only if it returns an awaitable or an iterator.
It may also return `LATER`: then something else calls `HandlerRun.follow` when the answer is known.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Protocol

from grpc import RpcMethodHandler, StatusCode

from torchserve_py.transport.http2.methods import LATER
from torchserve_py.transport.turns import running_turns


class ServedCall(Protocol):
    """The call of a handler; `Call` implements this."""

    def next_request(self) -> Any:
        """Return the first message, decoded."""

    async def awaited_request(self) -> Any:
        """Return what the handler gets: the first message, decompressed and decoded, or an iterator of messages."""

    async def write(self, message: Any) -> None:
        """Send a message; returns when there is room for another one."""

    def respond(self, response: Any) -> None:
        """End the call with the response of the handler; a handler that has written its messages has None."""

    def fail(self, code: StatusCode, details: str) -> None:
        """End the call with an error."""

    def raised(self, error: Exception) -> None:
        """End the call after an exception of the handler."""

    def done(self) -> bool:
        """Return whether the call has ended."""

    def handler_ended(self) -> None:
        """Note that the handler has ended."""


class HandlerRun:
    """The handler of one call, from the moment that it is asked for."""

    __slots__ = ("_beginning", "_call", "_handler", "_later", "_task", "has_begun", "is_running")

    def __init__(self, call: ServedCall, handler: RpcMethodHandler[Any, Any]) -> None:
        #: Whether the handler has been called.
        self.has_begun = False
        #: Whether the handler has been asked for, and has not ended.
        self.is_running = False
        self._call = call
        self._handler: Any = handler
        self._beginning: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.Future[Any] | None = None

    def start(self, *, in_task: bool) -> None:
        """Call the handler in the next turn of the event loop."""
        self.is_running = True
        if in_task:
            self._run(self._serve())
        else:
            self._beginning = asyncio.get_running_loop().call_soon(self._begin)

    def follow(self, result: Any) -> None:
        """Answer the call with what a handler may return: a response, what gives one in a task, or `LATER`."""
        if not self.is_running:  # the call is over
            if inspect.iscoroutine(result):
                result.close()
        elif self._later is not None and not self._later.done():
            self._later.set_result(result)
        elif hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            self._run(result)
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
        """Note that the handler has ended, unless it still runs in a task; that ends if it waits for the answer."""
        if self._later is not None and not self._later.done():
            self._later.set_result(None)
        elif self.is_running and self._task is None:
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
            result = self._behaviour(call.next_request(), call)
        except Exception as error:
            call.raised(error)
            self.end()
        else:
            self.follow(result)

    async def _serve(self) -> Any:
        self.has_begun = True
        result = self._behaviour(await self._call.awaited_request(), self._call)
        if result is LATER and not self._call.done():
            self._later = asyncio.get_running_loop().create_future()
            try:
                result = await self._later
            finally:
                self._later = None
        return await self._outcome(result)

    @property
    def _behaviour(self) -> Any:
        handler = self._handler
        if handler.request_streaming:
            return handler.stream_stream or handler.stream_unary
        return handler.unary_unary or handler.unary_stream

    def _run(self, result: Any) -> None:
        def ended(_: Any) -> None:
            if inspect.iscoroutine(result):
                result.close()  # where it was cancelled before it began
            self._task = None
            self.end()

        self._task = asyncio.get_running_loop().create_task(self._within_task(result))
        self._task.add_done_callback(ended)

    async def _within_task(self, result: Any) -> None:
        try:
            self._call.respond(await self._outcome(result))
        except asyncio.CancelledError:
            self._call.fail(StatusCode.CANCELLED, "The server ends the call.")
        except Exception as error:
            self._call.raised(error)

    async def _outcome(self, result: Any) -> Any:
        """Return the response that a result gives; None after writing the messages of an iterator."""
        if hasattr(result, "__aiter__"):
            async for message in result:
                await self._call.write(message)
            return None
        return await result if hasattr(result, "__await__") else result
