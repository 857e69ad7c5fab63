"""Inference over REST: ``infer``, ``infer_stream``, ``generate`` and ``generate_stream``.

A request is passed on as it came; the worker decodes it and encodes the response. Only that of a stateful model is
looked into here, for the sequence that it belongs to, and one with a time limit or a priority. This is a hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.api import priorities
from torchserve_py.api.access_log import note_ids
from torchserve_py.api.errors import DoorError, Failure, bad_request, handler_failure
from torchserve_py.api.exchanges import AfterBody, Reply, settled
from torchserve_py.api.open_inference.answers import Answers, failure_of_parts, refuse_if_failing
from torchserve_py.api.open_inference.compression import compressed_for, decompressed, encoding_for
from torchserve_py.api.open_inference.events import send_events
from torchserve_py.api.responses import Headers, Responses, Sent
from torchserve_py.api.sequence_parameters import ID, sequence_of
from torchserve_py.api.sequences import SequenceHeaders
from torchserve_py.bounded_json import UnreadableJson, read_member
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request
from torchserve_py.workers.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.workers.parts import JobFailed, Part, Parts
from ts.protocol.messages import OPEN_INFERENCE_REST

if TYPE_CHECKING:
    from torchserve_py.models.model import Model
    from torchserve_py.settings import Settings

INFER: Final = "infer"
INFER_STREAM: Final = "infer_stream"
GENERATE: Final = "generate"
GENERATE_STREAM: Final = "generate_stream"
ENDPOINTS: Final = frozenset((INFER, INFER_STREAM, GENERATE, GENERATE_STREAM))

_STREAMS: Final = frozenset((INFER_STREAM, GENERATE_STREAM))
_TEXT: Final = frozenset((GENERATE, GENERATE_STREAM))
#: How the worker is told of an endpoint, see `ts.open_inference.rest`; without, it is `INFER`.
_TOLD: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    INFER: (),
    **{name: ((":endpoint", name),) for name in (INFER_STREAM, GENERATE, GENERATE_STREAM)},
}
_PARAMETERS: Final = "parameters"
_TIMEOUT: Final = "timeout"
_TIMEOUT_MEMBER: Final = b'"timeout"'
_PRIORITY_MEMBER: Final = f'"{priorities.PARAMETER}"'.encode()
_LOOKED_INTO: Final = 64 * 1024
_LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_MAX_DIGITS: Final = 20


class OpenInferenceCalls:
    """Runs requests on models.

    Args:
        settings: Limits, and the names of the headers of sequences.
        responses: Writes answers.
        answers: Writes errors.
    """

    def __init__(self, settings: Settings, responses: Responses, answers: Answers) -> None:
        self._responses = responses
        self._answers = answers
        self._sequences = SequenceHeaders(settings)
        self._max_body = settings.max_request_size
        self._compress_from = settings.response_compression_min_size

    def begin(
        self, request: Request, model: Model, version: str | None, endpoint: str, refuse: Callable[[Exception], Sent]
    ) -> Reply:
        """Run a request.

        Args:
            request: The request.
            model: Its model.
            version: The version, as the client named it.
            endpoint: One of `ENDPOINTS`.
            refuse: Answers what goes wrong before there is a job.

        Raises:
            DoorError: The model cannot be run.
        """
        refuse_if_failing(model)
        encoding = request.headers.get("Content-Encoding")

        def submit(body: bytes) -> Inference:
            return self._submit(request, model, version, endpoint, body)

        async def submit_compressed(body: bytes) -> Sent:
            try:
                reply = submit(await decompressed(body, encoding or "", self._max_body))
            except Exception as error:
                return refuse(error)
            return await settled(reply, request)

        return AfterBody(self._max_body, submit if encoding is None else submit_compressed, refuse)

    def _submit(self, request: Request, model: Model, version: str | None, endpoint: str, body: bytes) -> Inference:
        headers: tuple[Any, ...] = request.raw_headers + _TOLD[endpoint]
        expires_in, priority = _urgency(body, request.headers.get(_LENGTH_HEADER))
        priority = priority or priorities.of_request(request)
        sequence = self._sequence(request, model, body) if model.is_stateful else None
        if sequence is not None:
            headers += sequence.headers
        parts = model.submit(
            InferenceRequest(
                headers,
                body,
                protocol=OPEN_INFERENCE_REST,
                sequence=sequence,
                by_default=version is None,
                priority=priority,
                expires_in=expires_in,
            )
        )
        note_ids(request, parts)
        return Inference(self._responses, self._answers, self._compress_from, request, parts, model, version, endpoint)

    def _sequence(self, request: Request, model: Model, body: bytes) -> SequenceRequest:
        """Which sequence a request belongs to: its parameters say so, or else TorchServe's headers."""
        in_headers = self._sequences.are_in(request)
        try:
            parameters = _parameters(body, request.headers.get(_LENGTH_HEADER))
        except DoorError:
            if not in_headers:
                raise
            parameters = {}
        if parameters.get(ID) is None and in_headers:
            return self._sequences.read(request)
        return sequence_of(self._sequences, model, parameters)


class Inference:
    """A request that has become a job, and what is made of its outcome; an `Exchange`."""

    __slots__ = ("_answers", "_compress_from", "_endpoint", "_model", "_request", "_responses", "_version", "parts")

    def __init__(
        self,
        responses: Responses,
        answers: Answers,
        compress_from: int,
        request: Request,
        parts: Parts,
        model: Model,
        version: str | None,
        endpoint: str,
    ) -> None:
        self._responses = responses
        self._answers = answers
        self._compress_from = compress_from
        self._request = request
        self.parts = parts
        self._model = model
        self._version = version
        self._endpoint = endpoint

    def tell(self, outcome: Part | Cause) -> Sent | Coroutine[Any, Any, Sent]:
        """Write the answer, of which ``outcome`` is the first part, or why there is none."""
        if not isinstance(outcome, Part):
            return self._fail(self._failure_of(outcome))
        if outcome.error is not None:
            return self._fail(handler_failure(outcome.status, outcome.error))
        if self._endpoint in _STREAMS:
            return self._stream(outcome)
        if outcome.more or not outcome.body:
            return self._send_only(outcome)
        if encoding_for(self._request, outcome.body, self._compress_from) is not None:
            return self._send_compressed(outcome)
        try:
            return self._send(outcome, outcome.body, outcome.headers)
        except DoorError as error:  # the model set what HTTP does not allow
            return self._fail(error.failure)

    async def _stream(self, first: Part) -> Sent:
        try:
            return await send_events(self._responses, self._request, self.parts, first, self._failure_of)
        except DoorError as error:
            return self._fail(error.failure)

    async def _send_only(self, first: Part) -> Sent:
        try:
            part = await _only_response(self.parts, first, self._model, self._endpoint)
        except JobFailed as failed:
            return self._fail(self._failure_of(failed.cause))
        except DoorError as error:
            return self._fail(error.failure)
        if part.error is not None:
            return self._fail(handler_failure(part.status, part.error))
        return await self._send_compressed(part)

    async def _send_compressed(self, part: Part) -> Sent:
        body, added = await compressed_for(self._request, part.body, self._compress_from)
        try:
            return self._send(part, body, (*part.headers, *added))
        except DoorError as error:
            return self._fail(error.failure)

    def _send(self, part: Part, body: bytes, headers: Headers) -> Sent:
        return self._responses.send(
            self._request, part.status, body, headers, reason=part.reason, request_id=self.parts.job.id
        )

    def _fail(self, failure: Failure) -> Sent:
        return self._answers.failure(self._request, failure, self.parts.job.id)

    def _failure_of(self, cause: Cause) -> Failure:
        return failure_of_parts(cause, self.parts, self._model.name, self._version, is_text=self._endpoint in _TEXT)


def _urgency(body: bytes, length: str | None) -> tuple[float | None, int]:
    """How many seconds a request may wait for a worker, and its priority, if its parameters say so; only small JSON is
    looked into.

    Raises:
        DoorError: What they say is no time, or no priority.
    """
    size = _json_size(body, length)
    if size > _LOOKED_INTO:
        return None, 0
    head = body[:size]
    if _TIMEOUT_MEMBER not in head and _PRIORITY_MEMBER not in head:
        return None, 0
    parameters = _parameters(body, length)
    return _seconds(parameters.get(_TIMEOUT)), priorities.of_parameter(parameters.get(priorities.PARAMETER))


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise bad_request(f"Parameter {_TIMEOUT}: {value!r} is no number of microseconds.")
    return value / 1e6 or None


def _parameters(body: bytes, length: str | None) -> dict[str, Any]:
    """The parameters of a request.

    Raises:
        DoorError: They cannot be read; the worker would not read them either, or they are too large to be looked for.
    """
    from ts.open_inference.json_objects import read_parameters  # few requests need it
    from ts.runtimes.errors import Failure as WorkerFailure

    size = _json_size(body, length)
    if size == 0:
        return {}
    try:
        return read_parameters({_PARAMETERS: read_member(memoryview(body)[:size], _PARAMETERS)}, "The request")
    except UnreadableJson as error:
        raise bad_request(
            f"The request body is no JSON object whose parameters can be read: {error}. (A sequence may be named in"
            " headers as well.)"
        ) from error
    except WorkerFailure as failure:
        raise bad_request(failure.message) from failure


def _json_size(body: bytes, length: str | None) -> int:
    """How long the JSON of a request is, as its header says; a header that the worker will refuse says nothing."""
    whole = len(body)
    if length is None or len(length) > _MAX_DIGITS or not (length.isascii() and length.isdigit()):
        return whole
    return min(int(length), whole)


async def _only_response(parts: Parts, part: Part, model: Model, endpoint: str) -> Part:
    """The one response of a model that may give several.

    Raises:
        DoorError: It has given none, or a second one.
        JobFailed: The job ended without an answer.
    """
    found = [part] if part.body else []
    while part.more:
        part = await parts.next()
        if part.error is not None:
            return part
        if part.body:
            found.append(part)
        if len(found) > 1:
            raise _not_one(model, endpoint, "several responses")
    if not found:
        raise _not_one(model, endpoint, "no response")
    return found[0]


def _not_one(model: Model, endpoint: str, count: str) -> DoorError:
    message = f"Model {model.name} has {count} to this request, and {endpoint} has one. Use {endpoint}_stream."
    return DoorError(Failure(501, "NotImplementedException", message))
