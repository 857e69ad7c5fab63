"""A request over HTTP: which route replies, how the reply becomes an answer, and what is logged and counted.

A route's handler returns a `Reply`. If that is an answer, or one answer of one job, no task is needed: `HttpRequest`
continues in the callback of the read that completes the request's body, and in the callback of the job's result.
Everything else runs in a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.body_charset import undo_charset
from torchserve_py.endpoints.client_call import TORCHSERVE_DIALECT, HttpCall, failure_answer
from torchserve_py.endpoints.content_encodings import CONTENT_ENCODING, undo_encoding
from torchserve_py.endpoints.credentials import NO_CREDENTIAL, key_of
from torchserve_py.endpoints.ended_requests import EndedRequests
from torchserve_py.endpoints.failures import (
    EXPECTED_ERRORS,
    EndpointError,
    Failure,
    method_not_allowed,
    not_found,
    unreadable_request,
)
from torchserve_py.endpoints.responses import ALREADY_SENT, Answer, allows_other_origins
from torchserve_py.endpoints.routing import ANY_PATH, AfterBody, EndpointContext, Match, Reply, Route, Router
from torchserve_py.endpoints.token_authorization import Guard
from torchserve_py.net.http1.http_connection import HttpConnection
from torchserve_py.net.http1.request import OVER, STREAMING, WAITING, Request
from torchserve_py.net.refusal_counts import RefusalReason
from ts.protocol.messages import STATUS_CANCELLED
from ts.protocol.request_names import REQUEST_NAME, trace_of, usable_name

logger = logging.getLogger(__name__)

_PREFLIGHT_HEADER: Final = "Access-Control-Request-Method"
#: The status of an accepted WebSocket, whose client may leave at any time.
_SWITCHING_PROTOCOLS: Final = 101
_ID_KEY: Final = REQUEST_NAME.encode()


class Application:
    """Answers the requests of one listener; also what browsers ask for pages of other origins, where those may call."""

    def __init__(self, context: EndpointContext, routes: Sequence[Route], guard: Guard | None = None) -> None:
        self.responses = context.responses
        self.tokens = context.tokens
        self.guard = guard
        self.find = Router(routes).find
        self.preflight = allows_other_origins(context.settings)
        self.is_logged = context.settings.access_log
        self.max_body = context.settings.max_request_size
        self.ended = EndedRequests(context.metrics, is_logged=self.is_logged)
        self.refusals = context.refusals
        #: Returns an empty record for a request of a connection.
        self.request = partial(HttpRequest, self)

    def is_preflight(self, request: Request) -> bool:
        """Whether a browser asks, before it sends a request, whether its page may."""
        if not self.preflight or request.method != "OPTIONS" or _PREFLIGHT_HEADER not in request.headers:
            return False
        return any(
            route.path != ANY_PATH and (route.applies is None or route.applies(request, values))
            for route, values, _ in self.find(request.path)
        )

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response to bytes that never became a request."""
        if status != 503:  # a connection above the limit is counted when it comes
            self.refusals.note(RefusalReason.too_slow if status == 408 else RefusalReason.malformed, peer, message)
        if self.is_logged:
            access_log.note(peer, "UNKNOWN", "/", "HTTP/1.0", status, 0.0)
        return self.responses.whole_failure(unreadable_request(status, message))


class HttpRequest(Request):
    """One request, from its head to its answer.

    `Request.stage` says how far its answer has got. Until that is over, the call waits for one thing at a time: its
    turn on the connection, its body (`_after_body`), its job (`_call`), or a coroutine (`_task`) that answers
    without a job, or sends the job's stream.

    Attributes:
        matched: The route whose handler is called now, or has replied.
        at: When it was over, in seconds since 1970.
        seconds: From its head to that.
        is_whole: Whether its answer was sent as a whole then.
        ids: What lines in JSON name of it, see `named`.
    """

    __slots__ = (
        *("_after_body", "_application", "_asked", "_call", "_matches", "_read_body", "_task"),
        *("at", "ids", "is_whole", "matched", "seconds"),
    )

    at: float
    seconds: float
    is_whole: bool
    ids: Mapping[str, str | None]

    #: The routes of the path that were not asked yet.
    _matches: Iterator[Match]

    def __init__(self, application: Application, connection: HttpConnection) -> None:
        Request.__init__(self, connection)
        self._application = application
        self.matched: Route | None = None
        #: The routes that have passed the request on, or have only other methods.
        self._asked: tuple[Route, ...] = ()
        #: The reply that waits for the body; the body, once a handler that had it has passed the request on.
        self._after_body: AfterBody | None = None
        self._read_body: bytes | None = None
        #: The job, if the request has become one. At the end this and what waits for the body are dropped: cycles would
        #: wait for the garbage collector.
        self._call: HttpCall | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def route(self) -> str:
        return "" if self.matched is None else self.matched.path

    def begin(self) -> None:
        application = self._application
        self._matches = iter(application.find(self.path))
        try:
            if application.preflight and application.is_preflight(self):
                reply: Reply = Answer(200)
            else:
                if application.guard is not None:
                    try:
                        application.guard.check(self)
                    except EndpointError as error:
                        application.refusals.note(RefusalReason.foreign_page, self.connection.peer, error)
                        raise
                reply = self._reply()
        except Exception as error:
            self.raised(error)
        else:
            self.follow(reply)

    def _reply(self) -> Reply:
        """Return the reply of the next route that has one.

        Raises EndpointError: no further route replies: 405 if routes of the path have only other methods, else 404.
        """
        tokens = self._application.tokens
        for route, values, handler in self._matches:
            if self._asked and route.path == ANY_PATH and self._lacking():
                break
            self.matched = route
            if route.applies is not None and not route.applies(self, values):
                continue
            if tokens is not None:
                self.credential = NO_CREDENTIAL
                if route.token is not None:
                    self.credential = tokens.admit(route.token, key_of(self), values.get("model_name"))
            if self.method in route.methods:
                reply = handler(self, values)
                if reply is not None:
                    return reply
            elif route.applies is not None:
                raise method_not_allowed(", ".join(route.methods))
            self._asked += (route,)
        lacking = self._lacking()
        self.matched = next(iter(lacking or self._asked), None)  # its dialect words the refusal
        if not lacking:
            raise not_found()
        raise method_not_allowed(", ".join(dict.fromkeys(chain.from_iterable(route.methods for route in lacking))))

    def _lacking(self) -> list[Route]:
        """Return those of the asked routes that have only other methods."""
        return [route for route in self._asked if self.method not in route.methods]

    def follow(self, reply: Reply | None) -> None:
        """Answer with a reply, or with what it comes to; None passes the request on to further routes."""
        try:
            while not isinstance(reply, Answer):
                if isinstance(reply, HttpCall):
                    self._call = reply
                    reply.answer(self)
                    return
                if reply is None:
                    reply = self._reply()
                elif callable(reply):
                    max_body = self._application.max_body
                    body = self.body_at_hand(max_body) if self._read_body is None else self._read_body
                    if body is None:
                        self._after_body = reply
                        self.when_read(max_body, self._has_body)
                        return
                    reply = self._with_body(reply, body)
                elif reply is ALREADY_SENT:
                    self._end()
                    return
                else:
                    self._run(reply)
                    return
            self._send(reply)
        except Exception as error:
            self.raised(error)

    def _has_body(self, body: bytes | Exception) -> None:
        after_body, self._after_body = self._after_body, None
        assert after_body is not None, "its body is here"
        try:
            if isinstance(body, Exception):
                raise body
            reply = self._with_body(after_body, body)
        except Exception as error:
            self.raised(error)
        else:
            self.follow(reply)

    def _with_body(self, after_body: AfterBody, body: bytes) -> Reply | None:
        if CONTENT_ENCODING in self.headers.raw and (self.matched is None or not self.matched.passes_encoding_on):
            return self._decoded(after_body, body)
        if self.matched is not None and self.matched.takes_json:
            body = undo_charset(self, body)
        reply = after_body(body)
        if reply is None:
            self._read_body = body  # for the next route
        return reply

    async def _decoded(self, after_body: AfterBody, body: bytes) -> Reply | None:
        """Reply to a body whose encoding is undone."""
        return self._with_body(after_body, await undo_encoding(self, body, self._application.max_body))

    def _run(self, coroutine: Coroutine[Any, Any, Reply | None]) -> None:
        self._task = task = asyncio.get_running_loop().create_task(self._wait(coroutine))
        task.add_done_callback(lambda _: coroutine.close())  # it may not have begun when the client left
        if self.credential is not None and (call := self._call) is not None:
            forget = self.credential.hold(call.name, self._lose_right)
            task.add_done_callback(lambda _: forget())

    async def _wait(self, coroutine: Coroutine[Any, Any, Reply | None]) -> None:
        try:
            reply = await coroutine
        except Exception as error:
            if isinstance(error, ConnectionError) and not self.connection.is_connected:
                logger.debug("The client left before it was answered")
                self.finish()
            else:
                self.raised(error)
        else:
            self.follow(reply)

    def raised(self, error: Exception) -> None:
        """Answer with an exception that an endpoint or an exchange raised; if the answer has begun, end it so."""
        is_expected = isinstance(error, EXPECTED_ERRORS)
        try:
            if self.stage is WAITING:
                if not is_expected:
                    target = ascii(access_log.without_secrets(self.target))
                    logger.error("%s %s failed.", self.method, target, exc_info=error)
                elif self._call is None and (telling := self._refused(error)) is not None:
                    self._run(telling)
                    return
                self._send(self._failure(error))
                return
            if is_expected and (call := self._call) is not None:
                failure = call.dialect.refusal(error)
                self.cause = failure.cause
                if frame := call.dialect.last_frame(failure):
                    self.send((frame,), last=True)
            elif not is_expected or self.stage is not OVER:
                fields = self.log_fields if self._call is None else self._call.log_fields
                about = {**fields, "request_id": self.id}
                logger.error("Request %s failed within its answer.", self.id, exc_info=error, extra=about)
            if self.stage is STREAMING:
                self.break_off()
            self._end()
        except Exception:
            logger.exception("An answer could not be written")
            self.finish()

    def _lose_right(self, failure: Failure) -> None:
        """End a long answer whose client's key is good no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self.raised(EndpointError(failure))

    def _refused(self, error: Exception) -> Coroutine[Any, Any, Reply] | None:
        """Return what answers a refused request in its route's own way, if there is such a way."""
        route = self.matched or next((match.route for match in self._matches), None)
        if route is None or route.refuse is None:
            return None
        return route.refuse(self, route.dialect.refusal(error))

    def _failure(self, error: Exception) -> Answer:
        """Return the answer to an exception, in the dialect of the job, else of the route."""
        call, dialect = self._call, TORCHSERVE_DIALECT if self.matched is None else self.matched.dialect
        if call is not None:
            dialect = call.dialect
        failure = dialect.refusal(error)
        self.cause = failure.cause
        return failure_answer(dialect, failure, call)

    def _send(self, answer: Answer) -> None:
        if self.stage is not OVER:
            status, body, headers, reason = answer
            call = self._call
            lines = self._application.responses.lines(self, headers, "" if call is None else call.id)
            self.respond(status, lines, body, reason)
        self._end(is_whole=True)

    def _end(self, *, is_whole: bool = False) -> None:
        """Finish the request, whose answer was sent or broken off, and cancel a job that is not needed any more."""
        call = self._call
        if call is not None and not call.ended:
            # In a later turn: the dispatcher may be calling this.
            asyncio.get_running_loop().call_soon(call.cancel)
        if self.stage is not OVER:
            self._application.ended.note(self, is_whole=is_whole)
        self.finish()

    def named(self) -> Mapping[str, str | None]:
        """Return what lines in JSON name: what the answer or the request has said, then what the job knows."""
        raw, call = self.headers.raw, self._call
        return {
            "request_id": self.id or usable_name(raw.get(_ID_KEY)),
            "trace_id": trace_of(self.headers["traceparent"]) if b"traceparent" in raw else None,
            "cause": self.cause,
            **(self.log_fields if call is None else call.log_fields),
        }

    def finish(self) -> None:
        self._call = self._after_body = self._read_body = None
        Request.finish(self)

    def lose(self) -> None:
        super().lose()
        self._call = self._after_body = self._read_body = None

    def left(self) -> None:
        """Give up: the client has disconnected."""
        self.cause = Cause.cancelled.value
        if self._call is not None:
            self.id = self.id or usable_name(self.headers.get(REQUEST_NAME)) or self._call.id
            self._call.cancel()
        task, self._task = self._task, None  # a cancelled task refers to this
        if task is not None:
            task.cancel()
        if self.status != _SWITCHING_PROTOCOLS:
            self.status = STATUS_CANCELLED
        self._application.ended.note(self, is_whole=False)
