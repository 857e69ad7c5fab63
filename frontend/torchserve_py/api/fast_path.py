"""Whole requests are answered without the connection's task: in callbacks, from the read to the answer.

Their door begins at once, in the callback of the read, and the answer is written in the callback of the result. Parsing
them aiohttp's way and waking a task twice would take a third more time than a small request takes so.

What is no whole request (see `whole_requests`) goes to aiohttp, and with it all that follows on the connection. A whole
request whose door wants the task goes to aiohttp, too, but leaves the connection as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from aiohttp import web

from torchserve_py.api.exchanges import Exchange
from torchserve_py.api.request_loop import RequestLoop
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.whole_requests import WholeRequest, WholeRequestParser

if TYPE_CHECKING:
    from torchserve_py.scheduling.effects import Cause
    from torchserve_py.workers.parts import Part

#: Bytes that may wait while the request before them is answered; then the client must wait.
_MAX_HELD: Final = 64 * 1024


#: Begins to answer a request. None: its door needs a task of its own, and nothing has been done.
Begin: TypeAlias = Callable[[WholeRequest], Exchange | Sent | None]


class FastPath(RequestLoop):
    """A connection that answers whole requests in callbacks, as far as its doors can.

    Args:
        begin: What begins; None if no door can.
        responses: Writes the answers.
    """

    __slots__ = ("_begin", "_exchange", "_held", "_request", "_responses", "_rest", "_started", "_whole")

    def __init__(self, manager: web.Server, begin: Begin | None, responses: Responses, **options: Any) -> None:
        super().__init__(manager, **options)
        self._responses = responses
        self._begin = begin
        #: None once the connection is aiohttp's for good.
        self._whole = None if begin is None else WholeRequestParser(self)
        #: The request that is being answered, the job that it became, and the task that writes a longer answer.
        self._request: WholeRequest | None = None
        self._exchange: Exchange | None = None
        self._rest: asyncio.Task[None] | None = None
        self._started: float | None = None
        #: What has arrived meanwhile.
        self._held = b""

    def take(self, data: bytes) -> bool:
        """Take what has arrived; False if it is aiohttp's."""
        if self._request is not None or self._held:
            self._hold(data)
            return True
        if self._whole is None:
            return False
        idle = self._current_request is None and not self._messages and not self._close and not self._force_close
        request = self._whole.parse(data) if idle else None
        if request is None:
            self._whole = None
            return False
        return self._take_request(request)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone: nobody waits for the answer."""
        if self._exchange is not None:
            self._exchange.parts.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self._request = self._exchange = self._rest = self._whole = None
        self._held = b""
        super().connection_lost(exc)

    def _take_request(self, request: WholeRequest) -> bool:
        started = self._loop.time() if self._logging_enabled else None
        begun = None if self._begin is None else self._begin(request)
        if begun is None:
            return False
        if self._manager is not None:
            self._manager.requests_count += 1
        self._started = started
        self._request = request
        self._request_in_progress = True
        self._keepalive = False
        if isinstance(begun, Sent):
            self._written(begun)
        else:
            self._exchange = begun
            begun.parts.tell_first(self._answer)
        return True

    def _answer(self, outcome: Part | Cause) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        try:
            told = exchange.tell(outcome)
            if isinstance(told, Sent):
                self._written(told)
            else:
                self._go_on(told)
        except Exception:  # whoever told the outcome has other connections, too
            self.log_exception("An answer could not be written")
            self.force_close()

    def _written(self, sent: Sent) -> None:
        if self.writing_paused and self._request is not None:
            self._go_on(self._responses.taken(self._request, sent))
        else:
            self._finish(sent)

    def _go_on(self, rest: Coroutine[Any, Any, Sent]) -> None:
        self._rest = self._loop.create_task(self._write_rest(rest, self._exchange))

    async def _write_rest(self, rest: Coroutine[Any, Any, Sent], exchange: Exchange | None) -> None:
        try:
            sent = await rest
        except ConnectionError:
            self.log_debug("The client left before it was answered")
            self.force_close()
        except Exception:
            self.log_exception("A request failed in the connection's fast path")
            self.force_close()
        else:
            self._rest = None
            self._finish(sent)
        finally:
            if exchange is not None:
                exchange.parts.cancel()  # does nothing to a job that has ended; the client of any other is gone

    def _finish(self, sent: Sent) -> None:
        """The request has been answered: the next one may come."""
        self.log_access(cast("web.BaseRequest", self._request), sent, self._started)
        self._request = self._exchange = None
        self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        if not sent.keep_alive or self._close or self._force_close:
            self._held = b""
            self.close()
            if self.transport is not None:
                self.transport.close()
            return
        self._keepalive = True
        self.stay_open()
        if self._held:
            self._loop.call_soon(self._take_held)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _MAX_HELD and self.transport is not None and self.transport.is_reading():
            self.transport.pause_reading()

    def _take_held(self) -> None:
        held, self._held = self._held, b""
        if self.transport is not None and not self.transport.is_closing():
            if not self.transport.is_reading():
                self.transport.resume_reading()
            if held:
                self.data_received(held)
