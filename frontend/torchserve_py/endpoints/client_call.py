"""The one way from a call of a client to its answer, whatever API the client speaks.

    endpoint ──ClientCall──▶ Serving … parts … ClientCall ──▶ Dialect ──▶ client

A `ClientCall` has what is the same for every API: the answer is its first part, or a stream that begins with it, or a
failure, before or after the first byte. A `Dialect` is what differs: how a failure looks, how a whole answer looks, how
the parts of a stream are framed. TorchServe's dialect is here; those of other APIs are in their folders.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Final, Protocol

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import (
    INVALID_KEY,
    EndpointError,
    Failure,
    failure_of,
    failure_of_job,
    handler_failure,
)
from torchserve_py.endpoints.own_words import in_own_words
from torchserve_py.endpoints.responses import (
    ALREADY_SENT,
    EVENTS_TYPE,
    AlreadySent,
    Answer,
    Headers,
    Responses,
    failure_body,
)
from torchserve_py.net.http1.errors import ReaderStalled
from torchserve_py.net.http1.request import STREAMING, WAITING, Request
from ts.protocol.messages import REQUEST_ID

#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE: Final = 16 * 1024
#: A line of an event stream that clients skip (HTML, 9.2.6).
_COMMENT: Final = b":\n\n"
_STREAM_HEADER: Final = ("ts_stream_next", "true")


class Dialect:
    """The part of an API's dialect that is the same for HTTP and gRPC."""

    #: Whether its clients know TorchServe's sentences for failures; all others read what has happened.
    has_torchserve_words: ClassVar[bool] = False

    def tells_exceptions(self) -> bool:
        """Return whether clients may read which exception has kept a model from being loaded."""
        return True

    def ended(self, call: ClientCall, cause: Cause) -> Failure:
        """Return the failure for a job that ended without (the rest of) an answer."""
        failure = failure_of_job(cause, call.name, call.version, call.sequence_id, call.model)
        if not self.has_torchserve_words:
            end, tells_exceptions = call.worker_end, self.tells_exceptions()
            failure = in_own_words(failure, cause, call.model, end, tells_exceptions=tells_exceptions)
        if (exceeded := call.exceeded) is not None:
            return failure._replace(message=exceeded.message, retry_after=exceeded.retry_after)
        if cause is not Cause.outcome_unknown:
            return failure
        return failure._replace(more_headers=(call.request_id_header,))


class HttpDialect(Dialect, ABC):
    """How one API speaks over HTTP.

    Unless a class says otherwise, the handler's answer goes out as it came, each part of a stream is a chunk, and a
    stream whose job fails breaks off: HTTP has no way to say "an error" once a response has begun.
    """

    @abstractmethod
    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        """Return the answer to a failure; without ``call``, to a request that has not become a job."""

    def refusal(self, error: Exception) -> Failure:
        """Return the failure for an exception that ended a request, before it became a job or after."""
        return failure_of(error)

    def answer(self, call: HttpCall, part: Part) -> Answer | Coroutine[Any, Any, Answer]:
        """Return the whole answer that begins with ``part``, or a coroutine that does so where that takes time.

        Raises EndpointError: the response cannot be one answer; awaiting the coroutine may raise it, too.
        """
        return Answer(part.status, part.body, part.headers, part.reason)

    def reply(self, call: HttpCall, first: Part) -> Answer | Coroutine[Any, Any, Answer | AlreadySent]:
        """Return the answer that begins with ``first``, or the coroutine that sends it as a stream.

        Raises EndpointError: as `answer` does.
        """
        return call.stream(first) if first.more else self.answer(call, first)

    def opening(self, call: HttpCall, first: Part) -> Answer:
        """Return the head of a stream."""
        return Answer(first.status, b"", first.headers, first.reason)

    def frame(self, body: bytes | bytearray) -> Sequence[bytes | bytearray]:
        """Return the pieces that make up a part of a stream on the wire."""
        return (body,)

    def last_frame(self, failure: Failure) -> Sequence[bytes | bytearray]:
        """Return the frame for a failure at the end of a stream; empty if the stream breaks off instead."""
        return ()


def failure_answer(dialect: HttpDialect, failure: Failure, call: HttpCall | None = None) -> Answer:
    """Return the dialect's answer to a failure, with the headers that are the same in every API."""
    answer = dialect.failure(failure, call)
    return answer._replace(headers=(*failure.headers, *answer.headers))


class ClientCall(Call):
    """A call that a client has made in one API.

    Attributes:
        model: None for a workflow.
        version: The one that the client named.
    """

    __slots__ = ("dialect", "model", "version")

    dialect: Dialect
    model: ServedModel | None
    version: str | None

    @property
    def name(self) -> str:
        """The name of the model, or of the workflow."""
        return "" if self.model is None else self.model.name

    @property
    def request_id_header(self) -> tuple[str, str]:
        """The header with the id by which the client can ask what has become of the step."""
        return REQUEST_ID, dict(self.sequence.headers if self.sequence else ()).get(REQUEST_ID, self.id)

    async def next_usable(self) -> Part:
        """Wait for the next part. Raises EndpointError: the call ended without a further part, or it is an error."""
        try:
            return self.usable(await self.next())
        except JobFailed as failed:
            raise EndpointError(self.dialect.ended(self, failed.cause)) from None

    def usable(self, outcome: Part | Cause) -> Part:
        """Return the outcome if it is a part without an error.

        Raises EndpointError: the outcome is a cause, or a part with an error.
        """
        if not isinstance(outcome, Part):
            raise EndpointError(self.dialect.ended(self, outcome))
        if (error := outcome.error) is not None:
            raise EndpointError(handler_failure(outcome.status, error, outcome.headers, outcome.body, outcome.reason))
        return outcome

    async def relay(self, first: Part) -> None:
        """Write ``first`` and every part that follows it.

        Raises EndpointError: the call failed; the parts before its failure have been written.
        """
        await self.write((first,))
        part = first
        while part.more:
            arrived = [await self.next_usable(), *self.take_arrived(_WRITE_SIZE)]
            part = arrived[-1]
            if part.error is not None:
                if len(arrived) > 1:
                    await self.write(arrived[:-1])
                self.usable(part)
            await self.write(arrived)

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts that have arrived. Waits for a client that reads slowly, so that the client sets the pace."""
        raise NotImplementedError

    @property
    def log_fields(self) -> dict[str, str | None]:
        """What lines of the access log name, besides the id of the request."""
        version = self.other_version or (None if self.model is None else self.model.version)
        named = {"sequence_id": self.sequence_id, "model": self.name, "model_version": version}
        return named if self.trace_id is None else {**named, "trace_id": self.trace_id}


class Replier(Protocol):
    """What has received a call, over HTTP or gRPC, and sends the answer. Neither method raises anything."""

    def follow(self, reply: Any) -> None:
        """Answer with a reply, or with what it comes to."""

    def raised(self, error: Exception) -> None:
        """Answer with a failure, or end an answer that has begun with it."""


class RepliedCall(ClientCall):
    """A call that is answered with one answer or a stream, as soon as the first part or a failure is known."""

    __slots__ = ("_replier",)

    _replier: Replier

    def answer(self, replier: Replier) -> None:
        """Have the call answered, without a task."""
        self._replier = replier
        self.await_first()

    def first(self, outcome: Part | Cause) -> None:
        replier = self._replier
        try:
            if not isinstance(outcome, Part) or outcome.error is not None:
                outcome = self.usable(outcome)
            reply = self.reply(outcome)
        except Exception as error:
            replier.raised(error)
        else:
            replier.follow(reply)

    def reply(self, first: Part) -> Any:
        """Return what the call is answered with: the whole answer, or a coroutine for one or for a stream.

        Raises EndpointError: the response cannot be one answer; awaiting the coroutine may raise it, too.
        """
        raise NotImplementedError


class HttpCall(RepliedCall):
    """A call over HTTP.

    Attributes:
        request: What it came with, and is answered to.
        comment_interval: How often the stream of events gets a comment until its first one (seconds); 0: never.
    """

    __slots__ = ("_comment", "comment_interval", "request", "responses")

    dialect: HttpDialect

    def __init__(
        self,
        request: Request,
        responses: Responses,
        dialect: HttpDialect,
        model: ServedModel | None,
        version: str | None,
        headers: Sequence[tuple[Any, Any]],
        body: Any = b"",
        content_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        by_default = version is None
        Call.__init__(
            self, headers, body, content_type, protocol, by_default=by_default, client=request.connection.client
        )
        self.request = request
        self.responses = responses
        self.dialect = dialect
        self.model = model
        self.version = version
        self.comment_interval = 0
        self._comment: asyncio.TimerHandle | None = None

    @property
    def request_line(self) -> tuple[str, str, str]:
        return self.request.method, self.request.target, self.request.route

    def header(self, name: str) -> str | None:
        # Nearly all requests lack what is asked for, which the parser's table tells sooner than a walk does.
        return super().header(name) if name.encode() in self.request.headers.raw else None

    def answer(self, replier: Replier) -> None:
        if self.comment_interval:  # first: the answer may come at once, and ends the comments
            self._comment_later()
        self._replier = replier
        self.await_first()

    def _comment_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._comment = loop.call_later(self.comment_interval, self._send_comment)

    def _send_comment(self) -> None:
        """Begin the stream, if it has not begun, with what clients skip and proxies take for a sign of life."""
        self._comment = None
        if self.request.stage is WAITING:
            self._begin(Answer(200, b"", (EVENTS_TYPE,)))
        if self.request.stage is STREAMING:
            self.request.send(((_COMMENT,),))
            self._comment_later()

    def end_comments(self) -> None:
        """Send no further comment: the answer begins, or another call gives it."""
        if self._comment is not None:
            self._comment.cancel()
            self._comment = None

    def _begin(self, head: Answer) -> None:
        if self.sequence_id is not None:  # the stream may break off
            head = head._replace(headers=(*head.headers, self.request_id_header))
        self.responses.start_stream(self.request, head, self.id)

    def reply(self, first: Part) -> Answer | Coroutine[Any, Any, Answer | AlreadySent]:
        """Return the answer that begins with the first part, or a coroutine that gives or sends it."""
        self.end_comments()
        if self.request.stage is STREAMING:  # since the first comment
            return self.stream(first)
        return self.dialect.reply(self, first)

    async def stream(self, first: Part) -> AlreadySent:
        """Send ``first`` and every part that follows it.

        Waits for the client after each write, so that a slow reader slows the stream down and fills no memory. A client
        that reads nothing for too long is dropped. Raises EndpointError: the job failed; BadResponse: HTTP does not
        allow the head that the handler has set.
        """
        try:
            if self.request.stage is WAITING:
                self._begin(self.dialect.opening(self, first))
            if self.request.stage is STREAMING:  # else nothing but the head was asked for
                await self.relay(first)
        except ReaderStalled:
            pass  # its connection is gone, and was logged
        finally:
            self.cancel()
        return ALREADY_SENT

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; while more are to come, wait for a client that reads slowly.

        Raises ReaderStalled: the client has read nothing for too long.
        """
        frame, more = self.dialect.frame, parts[-1].more
        self.request.send([frame(part.body) for part in parts], last=not more)
        pace = self.request.connection.pace
        if more and pace.is_reader_slow:
            await pace.drained()


#: The header of an answer of a stateful model to a request that named no sequence.
SEQUENCE_HINT: Final = "ts-sequence-hint"


class TorchServeDialect(HttpDialect):
    """TorchServe's REST API as a dialect; KServe v1 and SageMaker's paths speak it as well.

    Failures are TorchServe's JSON. Answers name the sequence in a header: the server may have chosen the id.
    """

    has_torchserve_words: ClassVar[bool] = True

    def __init__(self, sequence_header: str = "") -> None:
        self._sequence_header, self._sequence_key = sequence_header, sequence_header.lower()
        self._hint = (
            f"the request named no sequence, so it began one of its own; send {sequence_header} to continue this one"
        )

    def refusal(self, error: Exception) -> Failure:
        failure = failure_of(error)
        if failure.type == INVALID_KEY:  # TorchServe's clients know it by this status
            return failure._replace(status=400, more_headers=())
        return failure

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        body, headers = failure_body(failure)
        return Answer(failure.status, body, headers if call is None else self._named(headers, call))

    def answer(self, call: HttpCall, part: Part) -> Answer:
        headers = part.headers if call.sequence is None else self._named(part.headers, call)
        return Answer(part.status, part.body, headers, part.reason)

    def opening(self, call: HttpCall, first: Part) -> Answer:
        headers = self._named(first.headers, call)
        if not _has(headers, _STREAM_HEADER[0]):
            headers = (*headers, _STREAM_HEADER)
        return Answer(first.status, b"", headers, first.reason)

    def _named(self, headers: Headers, call: HttpCall) -> Headers:
        """Add the header that names the sequence, unless the handler has set it."""
        if (sequence := call.sequence) is None or _has(headers, self._sequence_key):
            return headers
        named = (*headers, (self._sequence_header, sequence.id))
        return (*named, (SEQUENCE_HINT, self._hint)) if sequence.is_made_up else named


def _has(headers: Headers, key: str) -> bool:
    """Return whether there is a header with this name, which is given in lower case."""
    return key in [name.lower() for name, _ in headers]


#: The dialect of routes that name no other.
TORCHSERVE_DIALECT: Final = TorchServeDialect()
