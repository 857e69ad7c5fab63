"""Inference over REST: ``infer``, ``infer_stream``, ``generate`` and ``generate_stream``.

The worker decodes the request and encodes the response. This door, a hot path, only reads the parameters that name a
sequence of a stateful model, a time limit or a priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torchserve_py.bounded_json import UnreadableJson, read_member
from torchserve_py.doors import priorities
from torchserve_py.doors.failures import DoorError, bad_request
from torchserve_py.doors.open_inference.answers import refuse_if_failing
from torchserve_py.doors.open_inference.rest_dialect import EventsDialect, SharedMemoryDialect, WholeDialect
from torchserve_py.doors.open_inference.shared_memory import SharedMemory
from torchserve_py.doors.open_inference.shared_tensors import REGION_MEMBER, BinaryRequest, with_binary_tensors
from torchserve_py.doors.pipeline import HttpExchange
from torchserve_py.doors.requests import body_refusal, decompressed
from torchserve_py.doors.responses import Responses
from torchserve_py.doors.routing import AfterBody
from torchserve_py.doors.sequence_parameters import ID, sequence_of
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.transport.http1.errors import BodyError
from torchserve_py.transport.http1.request import Request
from ts.protocol.messages import OPEN_INFERENCE_REST

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.settings.table import Settings

INFER: Final = "infer"
INFER_STREAM: Final = "infer_stream"
GENERATE: Final = "generate"
GENERATE_STREAM: Final = "generate_stream"
ENDPOINTS: Final = frozenset((INFER, INFER_STREAM, GENERATE, GENERATE_STREAM))

_STREAMS: Final = frozenset((INFER_STREAM, GENERATE_STREAM))
_TEXT: Final = frozenset((GENERATE, GENERATE_STREAM))
#: The header that tells the worker the endpoint, see `ts.open_inference.rest`; no header means `INFER`.
_ENDPOINT_HEADERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    INFER: (),
    **{name: ((":endpoint", name),) for name in (INFER_STREAM, GENERATE, GENERATE_STREAM)},
}
_PARAMETERS: Final = "parameters"
TIMEOUT: Final = "timeout"
_TIMEOUT_MEMBER: Final = b'"timeout"'
_PRIORITY_MEMBER: Final = f'"{priorities.PARAMETER}"'.encode()
_LOOKED_INTO: Final = 64 * 1024
_LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_LENGTH_NAME: Final = _LENGTH_HEADER.lower().encode()
_MAX_DIGITS: Final = 20


class OpenInferenceCalls:
    """Runs requests on models.

    Args:
        settings: Limits, and the names of the headers of sequences.
        responses: Writes answers.
        memory: Where tensors may be that are not sent.
    """

    def __init__(self, settings: Settings, serving: Serving, responses: Responses, memory: SharedMemory) -> None:
        self._serving = serving
        self._memory = memory
        self._responses = responses
        self._sequences = SequenceHeaders(settings)
        self._max_body = settings.max_request_size
        compress_from = settings.response_compression_min_size
        self._dialects = {
            name: (EventsDialect if name in _STREAMS else WholeDialect)(name, compress_from, is_text=name in _TEXT)
            for name in ENDPOINTS
        }

    def begin(self, request: Request, model: ServedModel, version: str | None, endpoint: str) -> AfterBody:
        """Run a request.

        Args:
            version: The version that the client named, or None.
            endpoint: One of `ENDPOINTS`.

        Raises:
            DoorError: The model cannot be run.
        """
        refuse_if_failing(self._serving, model)
        encoding = request.headers.get("Content-Encoding")

        def submit(body: bytes) -> HttpExchange:
            return self._submit(request, model, version, endpoint, body)

        async def submit_compressed(body: bytes) -> HttpExchange:
            return submit(await decompressed(request, body, self._max_body))

        return AfterBody(self._max_body, submit if encoding is None else submit_compressed)

    def _submit(
        self, request: Request, model: ServedModel, version: str | None, endpoint: str, body: bytes
    ) -> HttpExchange:
        headers: tuple[Any, ...] = request.raw_headers + _ENDPOINT_HEADERS[endpoint]
        length = request.headers.get(_LENGTH_HEADER)
        dialect = self._dialects[endpoint]
        if endpoint == INFER and self._memory.is_enabled:
            in_memory = self._in_memory(request, body)
            if in_memory is not None:
                body, json_size, outputs = in_memory
                length = str(json_size)
                headers = tuple(pair for pair in headers if pair[0].lower() != _LENGTH_NAME)
                headers += ((_LENGTH_NAME, length.encode()),)
                dialect = SharedMemoryDialect(endpoint, self._memory, outputs) if outputs else dialect
        expires_in, priority = _urgency(body, length)
        priority = priority or priorities.of_request(request)
        sequence = self._sequence(request, model, body, length) if model.is_stateful else None
        if sequence is not None:
            headers += sequence.headers
        inference = InferenceRequest(
            headers,
            body,
            protocol=OPEN_INFERENCE_REST,
            sequence=sequence,
            by_default=version is None,
            priority=priority,
            expires_in=expires_in,
        )
        return HttpExchange(self._responses, dialect, request, self._serving, model, inference, version)

    def _in_memory(self, request: Request, body: bytes) -> BinaryRequest | None:
        """Return the request with its tensors of shared memory; None if it has none.

        Raises DoorError: they are not there, or the server has no memory for them now.
        """
        json_size = _json_size(body, request.headers.get(_LENGTH_HEADER))
        if body.find(REGION_MEMBER, 0, json_size) < 0:
            return None
        try:
            return with_binary_tensors(self._memory, body, json_size, request.hold)
        except BodyError as error:
            raise body_refusal(error) from error

    def _sequence(self, request: Request, model: ServedModel, body: bytes, length: str | None) -> SequenceRequest:
        """Return the sequence that the parameters of a request name, or else TorchServe's headers."""
        in_headers = self._sequences.are_in(request)
        try:
            parameters = _parameters(body, length)
        except DoorError:
            if not in_headers:
                raise
            parameters = {}
        if parameters.get(ID) is None and in_headers:
            return self._sequences.read(request)
        return sequence_of(self._sequences, self._serving, model, parameters)


def _urgency(body: bytes, length: str | None) -> tuple[float | None, int]:
    """How many seconds a request may wait for a worker, and its priority, if its parameters say so; only small JSON is
    looked into.

    Raises DoorError: what they say is no time, or no priority.
    """
    size = _json_size(body, length)
    if size > _LOOKED_INTO:
        return None, 0
    head = body[:size]
    if _TIMEOUT_MEMBER not in head and _PRIORITY_MEMBER not in head:
        return None, 0
    parameters = _parameters(body, length)
    return seconds_of(parameters.get(TIMEOUT)), priorities.of_parameter(parameters.get(priorities.PARAMETER))


def seconds_of(value: Any) -> float | None:
    """Return how many seconds a request with this value of the parameter `TIMEOUT` may wait for a worker, if it says.

    Raises DoorError: the value is no time.
    """
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise bad_request(f"Parameter {TIMEOUT}: {value!r} is no number of microseconds.")
    return value / 1e6 or None


def _parameters(body: bytes, length: str | None) -> dict[str, Any]:
    """Return the parameters of a request.

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
    """Return the size of a request's JSON as its header says; a header that the worker will refuse is ignored."""
    whole = len(body)
    if length is None or len(length) > _MAX_DIGITS or not (length.isascii() and length.isdigit()):
        return whole
    return min(int(length), whole)
