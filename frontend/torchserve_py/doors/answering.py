"""How a request is answered: which route replies, how the reply becomes an answer, and what is logged and counted.

A route's handler returns a `Reply`. If that is an answer, or one answer of one job, `Answering` needs no task: it
continues in the callback of the read that completes the request's body, and in the callback of the job's result.
Everything else runs in a task.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from torchserve_py.doors.failures import EXPECTED_ERRORS, method_not_allowed, no_request, not_found
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange, failure_answer
from torchserve_py.doors.responses import Answer, Sent, allows_other_origins
from torchserve_py.doors.routing import ANY_METHOD, ANY_PATH, AfterBody, DoorContext, Reply, Route, Router
from torchserve_py.doors.torchserve_dialect import TORCHSERVE_DIALECT
from torchserve_py.jobs.parts import Part
from torchserve_py.logs import access_log
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request

logger = logging.getLogger(__name__)

_PREFLIGHT_HEADER: Final = "Access-Control-Request-Method"
#: All methods that no route has are counted under one name, as clients may make them up.
_OTHER: Final = "other"


class Application:
    """Answers the requests of one listener; also what browsers ask for pages of other origins, where those may call."""

    def __init__(self, context: DoorContext, routes: Sequence[Route]) -> None:
        self.responses = context.responses
        self.tokens = context.tokens
        self.find = Router(routes).find
        self.preflight = allows_other_origins(context.settings)
        self.is_logged = context.settings.access_log
        self.max_body = context.settings.max_request_size
        self.count = context.metrics.count_http_request

    def begin(self, request: Request) -> None:
        """Answer a request."""
        Answering(request, self).try_routes()

    def is_preflight(self, request: Request) -> bool:
        """Whether a browser asks, before it sends a request, whether its page may."""
        if not self.preflight or request.method != "OPTIONS" or _PREFLIGHT_HEADER not in request.headers:
            return False
        matches = self.find(request.target.partition("?")[0])
        return bool(matches) and matches[0][0].path != ANY_PATH  # they are sorted

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response to bytes that never became a request."""
        if self.is_logged:
            access_log.note(peer, "UNKNOWN", "/", "HTTP/1.0", status, 0.0)
        return self.responses.whole_failure(no_request(status, message))


class Answering:
    """One request, from its head to its answer."""

    def __init__(self, request: Request, application: Application) -> None:
        self._request = request
        self._application = application
        self._matches = iter(application.find(request.target.partition("?")[0]))
        #: The route whose handler is called now, or has replied.
        self._route: Route | None = None
        #: The route whose dialect words the refusal if no route replies, and the methods of routes that lack this one.
        self._declined: Route | None = None
        self._allowed: tuple[str, ...] = ()
        #: The reply that waits for the body; the body, once it has arrived and a handler has passed the request on.
        self._after_body: AfterBody | None = None
        self._body: bytes | None = None
        #: The job, if the request has become one.
        self._exchange: HttpExchange | None = None
        self._task: asyncio.Task[None] | None = None
        request.on_lost = self._lost

    def try_routes(self) -> None:
        """Call the handlers of the path's (further) routes until one replies, and follow the reply."""
        try:
            self._follow(self._reply())
        except Exception as error:
            self._fail(error)

    def _reply(self) -> Reply:
        """Return the reply of the next route that has one.

        Raises DoorError: no further route replies: 405 if routes of the path have only other methods, else 404.
        """
        request, tokens = self._request, self._application.tokens
        if self._application.preflight and self._application.is_preflight(request):
            return Answer(200)
        for route, values in self._matches:
            if route.path == ANY_PATH and self._allowed:
                break
            self._route = route
            if route.applies is not None and not route.applies(request, values):
                continue
            if tokens is not None and route.token is not None:
                tokens.check(route.token, request.headers.get("Authorization"))
            if request.method in route.methods:
                reply = route.handler(request, values)
                if reply is not None:
                    return reply
                self._declined = self._declined or route
            elif route.applies is not None:
                raise method_not_allowed(", ".join(route.methods))
            else:
                if not self._allowed:
                    self._declined = route
                self._allowed += route.methods
        self._route = self._declined
        raise method_not_allowed(", ".join(dict.fromkeys(self._allowed))) if self._allowed else not_found()

    def _follow(self, reply: Reply | None) -> None:
        if callable(reply):
            self._after_body = reply
            if self._body is None:
                self._request.when_read(self._application.max_body, self._go_on)
            else:
                self._go_on(self._body)
        elif isinstance(reply, Answer):
            self._send(reply)
        elif isinstance(reply, Sent):
            self._finish()
        elif isinstance(reply, HttpExchange):
            self._exchange, parts = reply, reply.parts
            self._request.log_fields = {"request_id": parts.job_id, "sequence_id": parts.sequence_id}
            parts.when_first(self._answer_with)
        elif reply is None:  # the handler passes the request on
            self.try_routes()
        else:
            self._run(reply)

    def _go_on(self, body: bytes | Exception) -> None:
        try:
            if isinstance(body, Exception):
                raise body
            assert self._after_body is not None, "its body is here"
            reply = self._after_body(body)
            if reply is None:
                self._body = body  # for the next route
            self._follow(reply)
        except Exception as error:
            self._fail(error)

    def _answer_with(self, outcome: Part | Cause) -> None:
        """Write the answer. Raises nothing: the dispatcher calls this amid its own work."""
        exchange = self._exchange
        assert exchange is not None, "its outcome is here"
        try:
            sent = exchange.answer_with(outcome)
            if not isinstance(sent, Sent):
                self._run(sent)
                return
            if not exchange.parts.ended:
                self._cancel_soon()
            self._finish()
        except Exception as error:
            self._fail(error)

    def _run(self, coroutine: Coroutine[Any, Any, Reply | None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait(coroutine))
        self._task.add_done_callback(lambda _: coroutine.close())  # it may not have begun when the client left

    async def _wait(self, coroutine: Coroutine[Any, Any, Reply | None]) -> None:
        try:
            self._follow(await coroutine)
        except Exception as error:
            if isinstance(error, ConnectionError) and not self._request.connection.is_connected:
                logger.debug("The client left before it was answered")
                self._request.finish()
            else:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Answer with an exception that a door raised, unless the answer has begun."""
        request = self._request
        self._cancel_soon()
        if request.status:
            job_id = request.log_fields.get("request_id", "")
            logger.error("Request %s failed within its answer.", job_id, exc_info=error, extra=request.log_fields)
            if not request.is_answered:
                request.break_off()
            self._finish()
            return
        if not isinstance(error, EXPECTED_ERRORS):
            logger.error("%s %s failed.", request.method, ascii(request.target), exc_info=error)
        dialect: HttpDialect = TORCHSERVE_DIALECT if self._route is None else self._route.dialect
        try:
            self._send(failure_answer(dialect, dialect.refusal(error)))
        except Exception:
            logger.exception("An answer could not be written")
            request.finish()

    def _cancel_soon(self) -> None:
        """Cancel the job, if there is one that goes on, once the dispatcher has done its present work."""
        if self._exchange is not None and not self._exchange.parts.ended:
            asyncio.get_running_loop().call_soon(self._exchange.cancel)

    def _send(self, answer: Answer) -> None:
        self._application.responses.send(self._request, answer)
        self._finish()

    def _finish(self) -> None:
        request, route = self._request, self._route
        path = "" if route is None else route.path
        method = request.method if request.method in ANY_METHOD else _OTHER
        self._application.count(method, path, request.status)
        if self._application.is_logged and (route is None or not route.is_quiet or 400 <= request.status < 500):
            protocol = "HTTP/1.1" if request.version == (1, 1) else "HTTP/1.0"
            access_log.note(
                request.connection.peer,
                request.method,
                request.target,
                protocol,
                request.status,
                request.connection.loop.time() - request.arrived,
                request.log_fields,
                path,
            )
        request.finish()

    def _lost(self) -> None:
        """Give up, because the client has disconnected."""
        if self._exchange is not None:
            self._exchange.cancel()
        if self._task is not None:
            self._task.cancel()
