"""The one way from a request to its answer, whatever API the client speaks.

    door ──InferenceRequest──▶ Serving ──Parts──▶ Exchange ──▶ Dialect ──▶ client

An `Exchange` holds what is the same for every API: the answer to a job is its first part, or a stream that begins with
it, or a failure, before or after the first byte. A `Dialect` is what differs: how a failure looks, how a whole answer
looks, how the parts of a stream are framed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchserve_py.core.serving import ServedModel
from torchserve_py.doors.failures import DoorError, Failure, failure_of, failure_of_job, handler_failure
from torchserve_py.doors.responses import SENT, Answer, Responses, Sent
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.parts import JobFailed, Part, Parts
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.response import BadResponse

#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE: Final = 16 * 1024


class Dialect:
    """The part of an API's dialect that is the same for HTTP and gRPC."""

    def ended(self, exchange: Exchange, cause: Cause) -> Failure:
        """Return the failure for a job that ended without (the rest of) an answer."""
        return failure_of_job(cause, exchange.name, exchange.version, exchange.parts.sequence_id)


class HttpDialect(Dialect, ABC):
    """How one API speaks over HTTP.

    Unless a class says otherwise, the handler's answer goes out as it came, each part of a stream is a chunk, and a
    stream whose job fails breaks off: HTTP has no way to say "an error" once a response has begun.
    """

    @abstractmethod
    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        """Return the answer to a failure; without ``exchange``, to a request that has not become a job."""

    def refusal(self, error: Exception) -> Failure:
        """Return the failure for an exception that was raised before the request became a job."""
        return failure_of(error)

    def answer(self, exchange: HttpExchange, part: Part) -> Answer | Coroutine[Any, Any, Answer]:
        """Return the whole answer that begins with ``part``, or a coroutine that does so where that takes time.

        Raises DoorError: the response cannot be one answer; awaiting the coroutine may raise it, too.
        """
        return Answer(part.status, part.body, part.headers, part.reason)

    def stream(self, exchange: HttpExchange, first: Part) -> Coroutine[Any, Any, Sent] | None:
        """Return the coroutine that sends a stream from ``first`` on; None if the answer is a whole one."""
        return exchange.stream(first) if first.more else None

    def opening(self, exchange: HttpExchange, first: Part) -> Answer:
        """Return the head of a stream."""
        return Answer(first.status, b"", first.headers, first.reason)

    def frame(self, body: bytes | bytearray) -> Sequence[bytes | bytearray]:
        """Return the pieces that make up a part of a stream on the wire."""
        return (body,)

    def last_frame(self, failure: Failure) -> Sequence[bytes | bytearray]:
        """Return the frame for a failure at the end of a stream; empty if the stream breaks off instead."""
        return ()


def failure_answer(dialect: HttpDialect, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
    """Return the dialect's answer to a failure, with the headers that are the same in every API."""
    answer = dialect.failure(failure, exchange)
    return answer._replace(headers=(*failure.headers, *answer.headers))


@dataclass(slots=True, eq=False)
class Exchange(ABC):
    """A request that has become a job; ``model`` is None for a workflow, ``version`` the one that the client named."""

    dialect: Dialect
    model: ServedModel | None
    name: str
    inference: InferenceRequest
    parts: Parts
    version: str | None

    async def next(self) -> Part:
        """Wait for the next part. Raises DoorError: the job ended without a further part, or the part is an error."""
        try:
            return self.usable(await self.parts.next())
        except JobFailed as failed:
            raise DoorError(self.dialect.ended(self, failed.cause)) from None

    def usable(self, outcome: Part | Cause) -> Part:
        """Return the outcome if it is a part without an error.

        Raises DoorError: the outcome is a cause, or a part with an error.
        """
        if not isinstance(outcome, Part):
            raise DoorError(self.dialect.ended(self, outcome))
        if outcome.error is not None:
            raise DoorError(handler_failure(outcome.status, outcome.error))
        return outcome

    async def relay(self, first: Part) -> None:
        """Write ``first`` and every part that follows it.

        Raises DoorError: the job failed; the parts before its failure have been written.
        """
        await self.write((first,))
        part = first
        while part.more:
            arrived = [await self.next(), *self.parts.take_arrived(_WRITE_SIZE)]
            part = arrived[-1]
            if part.error is not None:
                if len(arrived) > 1:
                    await self.write(arrived[:-1])
                self.usable(part)
            await self.write(arrived)

    @abstractmethod
    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts that have arrived. Waits for a client that reads slowly, so that the client sets the pace."""

    def cancel(self) -> None:
        """Cancel the job, because its client has left or wants no more; do nothing if the job has ended."""
        self.parts.cancel()


@dataclass(slots=True, eq=False)
class HttpExchange(Exchange):
    """An exchange with an HTTP client.

    `Answering` calls `answer_with`, and runs the coroutine that this may return.
    """

    dialect: HttpDialect
    request: Request
    responses: Responses

    def answer_with(self, outcome: Part | Cause) -> Sent | Coroutine[Any, Any, Sent]:
        """Answer with the first part, or with the cause why the job ended without a part.

        Returns the answer, if it was sent in one write; otherwise the coroutine that sends it.
        """
        try:
            part = self.usable(outcome)
            stream = self.dialect.stream(self, part)
            if stream is not None:
                return stream
            answer = self.dialect.answer(self, part)
            if isinstance(answer, Answer):
                return self.responses.send(self.request, answer, self.parts.job_id)
            return self._wait(answer)
        except (DoorError, BadResponse) as error:
            return self._fail(failure_of(error))

    async def stream(self, first: Part) -> Sent:
        """Send ``first`` and every part that follows it.

        Waits for the client after each write, so that a slow reader slows the stream down and fills no memory. A client
        that reads nothing for too long is dropped.
        """
        try:
            head = self.dialect.opening(self, first)
            sent = self.responses.start_stream(self.request, head, self.parts.job_id)
            if not self.request.is_answered:  # else nothing but the head was asked for
                await self.relay(first)
        except (DoorError, BadResponse) as error:
            return self._fail(failure_of(error))
        except ReaderStalled:
            pass  # its connection is gone, and was logged
        finally:
            self.cancel()
        return sent

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; while more are to come, wait for a client that reads slowly.

        Raises ReaderStalled: the client has read nothing for too long.
        """
        frame, more = self.dialect.frame, parts[-1].more
        self.request.send([frame(part.body) for part in parts], last=not more)
        pace = self.request.connection.pace
        if more and pace.is_reader_slow:
            await pace.drained()

    async def _wait(self, answer: Coroutine[Any, Any, Answer]) -> Sent:
        try:
            return self._send(await answer)
        except (DoorError, BadResponse) as error:
            return self._fail(failure_of(error))
        finally:
            self.cancel()

    def _send(self, answer: Answer) -> Sent:
        return self.responses.send(self.request, answer, self.parts.job_id)

    def _fail(self, failure: Failure) -> Sent:
        """Answer with a failure; within a stream, end the stream with the failure, or break the stream off."""
        if not self.request.status:
            return self._send(failure_answer(self.dialect, failure, self))
        if frame := self.dialect.last_frame(failure):
            self.request.send((frame,), last=True)
        else:
            self.request.break_off()
        return SENT
