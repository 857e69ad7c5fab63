"""What a connection does with its requests: one after the other, in the connection's own task.

aiohttp's own loop starts a task for every request, on Python 3.11 a sixth of the cost of a small one. Doors need no
task of their own: when the client leaves, the connection's is cancelled, and with it the door that runs in it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import ERROR, _ErrInfo

from torchserve_py.api.responses import Sent


class RequestLoop(web.RequestHandler):
    """aiohttp's connection with another loop; all else is aiohttp's. Doors answer with `Sent`, or as aiohttp does."""

    __slots__ = ()

    async def start(self) -> None:
        """Answer requests until the connection is to be closed."""
        while not self._force_close:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                self._resume_reading_if_drained()
            await self._serve(message, payload)
            if not self._keepalive or self._close or self._force_close:
                break
            self.stay_open()
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    def stay_open(self) -> None:
        """Wait for the next request, though not for ever."""
        self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)

    async def _serve(self, message: Any, payload: StreamReader) -> None:
        """Answer one request; set whether the connection stays open."""
        self._keepalive = False
        handler, factory, manager = self._request_handler, self._request_factory, self._manager
        if handler is None or factory is None or manager is None:  # the client is gone
            return
        manager.requests_count += 1
        started = self._loop.time() if self._logging_enabled else None
        if isinstance(message, _ErrInfo):
            handler, message = self._make_error_handler(message), ERROR
        writer = StreamWriter(self, self._loop)
        request = factory(message, payload, self, writer, self._task_handler)  # type: ignore[arg-type]
        self._current_request = request
        self._request_in_progress = True
        try:
            response = await handler(request)
            if isinstance(response, Sent) and not self._upgraded:
                self.log_access(request, response, started)
            else:
                response, client_gone = await self.finish_response(request, response, started)
                if client_gone:
                    return
            self._keepalive = bool(response.keep_alive)
            if not payload.is_eof():
                await self._drop_rest(payload)
        except ConnectionError:
            self.log_debug("The client left before it was answered")
        except Exception:
            self.log_exception("A request failed in the connection's loop")
            self.force_close()
        except BaseException:
            self.force_close()
            raise
        finally:
            request._task = None  # type: ignore[assignment]  # or both would live until the garbage collector comes
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None:
                self._handler_waiter.set_result(None)

    async def _drop_rest(self, payload: StreamReader) -> None:
        """Read what is left of a body that was answered early, but not for long; then give the connection up."""
        if not self._force_close and self._lingering_time:
            try:
                async with asyncio.timeout(self._lingering_time):
                    while not payload.is_eof():
                        await payload.readany()
            except TimeoutError:
                self.log_debug("The rest of a body was not read")
        if not payload.is_eof():
            self._keepalive = False
