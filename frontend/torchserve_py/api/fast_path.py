"""Whole requests are answered without the connection's task: in callbacks, from the read to the answer.

Their door begins at once, in the callback of the read, and the answer is written in the callback of the result. Parsing
them aiohttp's way and waking a task twice takes a quarter more of the frontend's time for a small request, and nearly
twice as much where heads repeat.

What is no whole request (see `whole_requests`) goes to aiohttp, and with it all that follows on the connection, since
nobody can tell where aiohttp's parser stands. A whole request whose door wants the task goes to aiohttp, too, but
leaves the connection as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from torchserve_py.api.exchanges import Exchange
from torchserve_py.api.request_loop import RequestLoop
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.routing import Router
from torchserve_py.api.whole_requests import Unfinished, WholeRequest, parse_whole

if TYPE_CHECKING:
    from torchserve_py.scheduling.effects import Cause
    from torchserve_py.workers.parts import Part

#: Bytes that may wait while the request before them is answered; then the client must wait.
_MAX_HELD: Final = 64 * 1024
#: How long a body may take to arrive (seconds): large ones come in several reads, and some clients write it by itself.
_PATIENCE: Final = 0.1


class FastPath(RequestLoop):
    """A connection that answers whole requests in callbacks, as far as its doors can.

    Args:
        router: Finds the doors; None where none can.
        responses: Writes the answers.
        max_body: Bytes; a longer body is aiohttp's from the beginning.
    """

    __slots__ = (
        "_exchange",
        "_held",
        "_is_aiohttps",
        "_max_body",
        "_missing",
        "_patience",
        "_pieces",
        "_request",
        "_responses",
        "_rest",
        "_router",
        "_started",
        "_unfinished",
    )

    def __init__(
        self, manager: web.Server, router: Router | None, responses: Responses, max_body: int, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self._responses = responses
        self._max_body = max_body
        self._router = router
        #: Whether the connection is aiohttp's for good.
        self._is_aiohttps = router is None
        #: A request whose body is yet to come: its beginning, every read so far, what is missing, and the time limit.
        self._unfinished: Unfinished | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self._patience: asyncio.TimerHandle | None = None
        #: The request that is being answered, the job that it became, and the task that writes a longer answer.
        self._request: WholeRequest | None = None
        self._exchange: Exchange | None = None
        self._rest: asyncio.Task[None] | None = None
        self._started: float | None = None
        #: What has arrived meanwhile.
        self._held = b""

    def take(self, data: bytes) -> bytes | None:
        """Take what has arrived; return what is aiohttp's instead, be it nothing but a call for it to go on."""
        if self._request is not None or self._held:
            self._hold(data)
            return None
        router = self._router
        if router is None or self._is_aiohttps:
            return data
        if self._unfinished is not None:
            return self._take_more(router, self._unfinished, data)
        if self._current_request is not None or self._messages or self._close or self._force_close:
            parsed = None
        else:
            parsed = parse_whole(data, self)
        if isinstance(parsed, Unfinished) and parsed.head.length <= self._max_body:
            self._wait_for_body(parsed, data)
            return None
        if not isinstance(parsed, WholeRequest):
            self._is_aiohttps = True
            return data
        return None if self._begin(router, parsed) else data

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone: nobody waits for the answer."""
        self._stop_waiting()
        self._held = b""
        self._drop()
        super().connection_lost(exc)

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """Wait for the answer that is being written, but not longer than ``timeout`` seconds; then drop it."""
        try:
            await super().shutdown(timeout)
        finally:
            self._drop()

    # A body that is behind its head.

    def _wait_for_body(self, unfinished: Unfinished, data: bytes) -> None:
        self._keepalive = False  # the connection is not idle any more
        self._unfinished = unfinished
        self._pieces = [data]
        self._missing = unfinished.missing
        self._patience = self._loop.call_later(_PATIENCE, self._leave_unfinished)

    def _take_more(self, router: Router, unfinished: Unfinished, data: bytes) -> bytes | None:
        self._missing -= len(data)
        self._pieces.append(data)
        if self._missing > 0:
            return None
        whole = self._missing == 0 and not self._close and not self._force_close
        pieces = self._stop_waiting()
        if whole:
            request = WholeRequest(unfinished.head, b"".join((unfinished.body, *pieces[1:])), self)
            if self._begin(router, request):
                return None
        else:
            self._is_aiohttps = True
        return b"".join(pieces)

    def _stop_waiting(self) -> list[bytes]:
        """Wait for no body any more; return what was read."""
        pieces, self._pieces = self._pieces, []
        self._unfinished = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return pieces

    def _leave_unfinished(self) -> None:
        """The body is slow: aiohttp reads it, with limits of its own."""
        pieces = self._stop_waiting()
        self._is_aiohttps = True
        self.data_received(b"".join(pieces))

    # A request, from its beginning to its end.

    def _begin(self, router: Router, request: WholeRequest) -> bool:
        """Begin to answer a request; return whether its door could."""
        started = self._loop.time() if self._logging_enabled else None
        begun = router.begin(request)
        if begun is None:
            return False
        if self._manager is not None:
            self._manager.requests_count += 1
        self._started = started
        self._request = request
        self._request_in_progress = True
        self._keepalive = False
        if isinstance(begun, Sent):
            self._written(request, begun)
        else:
            self._exchange = begun
            begun.parts.tell_first(self._answer)
        return True

    def _answer(self, outcome: Part | Cause) -> None:
        """Write the answer. This is called amid the dispatcher's work: no error may leave it."""
        request, exchange, router = self._request, self._exchange, self._router
        if request is None or exchange is None or router is None:  # the client is gone
            return
        try:
            try:
                told = exchange.tell(outcome)
            except Exception as error:
                told = router.fail(request, error)
            if isinstance(told, Sent):
                if not exchange.parts.ended:
                    self._loop.call_soon(exchange.parts.cancel)
                self._written(request, told)
            else:
                self._go_on(router, request, told)
        except Exception:
            self.log_exception("An answer could not be written")
            self._loop.call_soon(exchange.parts.cancel)
            self._end_request()
            self.force_close()

    def _written(self, request: WholeRequest, sent: Sent) -> None:
        if self.writing_paused and self._router is not None:
            self._go_on(self._router, request, self._responses.taken(request, sent))
        else:
            self._finish(request, sent)

    def _go_on(self, router: Router, request: WholeRequest, rest: Coroutine[Any, Any, Sent]) -> None:
        self._rest = self._loop.create_task(self._write_rest(router, request, rest))
        self._rest.add_done_callback(lambda _: rest.close())  # it may not have begun when the client left

    async def _write_rest(self, router: Router, request: WholeRequest, rest: Coroutine[Any, Any, Sent]) -> None:
        exchange = self._exchange
        try:
            try:
                sent = await rest
            except ConnectionError:
                raise
            except Exception as error:
                sent = router.fail(request, error)
            self._finish(request, sent)
        except ConnectionError:
            self.log_debug("The client left before it was answered")
            self._end_request()
            self.force_close()
        finally:
            if exchange is not None:
                exchange.parts.cancel()  # does nothing to a job that has ended; the client of any other is gone

    def _finish(self, request: WholeRequest, sent: Sent) -> None:
        """The request has been answered: the next one may come."""
        if self._logging_enabled:
            self.log_access(cast("web.BaseRequest", request), sent, self._started)
        self._end_request()
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

    def _end_request(self) -> None:
        self._request = self._exchange = self._rest = None
        self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def _drop(self) -> None:
        """Nobody waits for an answer any more."""
        if self._request is None:
            return
        if self._exchange is not None:
            self._exchange.parts.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self._end_request()

    # What arrives before the answer is written.

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
