"""Inference over REST: ``infer``, ``infer_stream``, ``generate`` and ``generate_stream``.

The worker decodes the request and encodes the response. This endpoint, a hot path, only reads the parameters that name
a sequence of a stateful model, a time limit, a deadline or a priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from torchserve_py.apis.open_inference.answers import refuse_if_failing
from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.apis.open_inference.rest_dialect import EventsDialect, SharedMemoryDialect, WholeDialect
from torchserve_py.apis.open_inference.sequence_parameters import sequence_of
from torchserve_py.apis.open_inference.shared_memory import SharedMemory
from torchserve_py.apis.open_inference.shared_tensors import REGION_MEMBER, with_binary_tensors
from torchserve_py.base.bounded_json import UnreadableJson, read_member
from torchserve_py.base.settings.schemas.schema import shown
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.body_charset import undo_charset
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.failures import EndpointError, bad_request
from torchserve_py.endpoints.requests import PRIORITY, priority_in_parameter
from torchserve_py.endpoints.routing import AfterBody, EndpointContext
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.endpoints.time_limits import DEADLINE_NAMES, deadline_in, read_deadline, seconds_since
from torchserve_py.net.http1.request import Request
from ts.protocol.messages import OPEN_INFERENCE_REST

INFER: Final = "infer"
ENDPOINTS: Final = (INFER, "infer_stream", "generate", "generate_stream")

#: The header that tells the worker the endpoint, see `ts.apis.open_inference.rest`; no header means `INFER`.
_ENDPOINT: Final = ":endpoint"
_PARAMETERS: Final = "parameters"
TIMEOUT: Final = "timeout"
#: What the body of a request has that limits its time, or is urgent: how the members begin.
_URGENT_MEMBERS: Final = (b'"timeout"', f'"{PRIORITY}"'.encode(), b'"ts_request_')
_NO_PARAMETERS: Final[Mapping[str, Any]] = {}
_LOOKED_INTO: Final = 64 * 1024
LENGTH_HEADER: Final = "Inference-Header-Content-Length"
_LENGTH_NAME: Final = LENGTH_HEADER.lower().encode()
_MAX_DIGITS: Final = 20
#: The most that an unsigned integer of 64 bits holds, which is the parameter's type in Triton (microseconds).
_MAX_TIMEOUT: Final = 2**64 - 1


class OpenInferenceCalls:
    """Runs requests on models."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._serving = context.serving
        self._memory = context.shared(SharedMemory.of)
        self._sequences = SequenceHeaders(context.settings)
        compress_from = context.settings.of(OpenInferenceSettings).response_compression_min_size
        self._dialects = {
            name: (EventsDialect if name.endswith("_stream") else WholeDialect)(name, compress_from)
            for name in ENDPOINTS
        }

    def begin(self, request: Request, model: ServedModel, version: str | None, endpoint: str) -> AfterBody:
        """Run a request; ``version`` is the one that the client named, ``endpoint`` one of `ENDPOINTS`."""
        refuse_if_failing(self._serving, model)
        return partial(self._submit, request, model, version, endpoint)

    def _submit(
        self, request: Request, model: ServedModel, version: str | None, endpoint: str, body: bytes
    ) -> HttpCall:
        length = request.headers.raw.get(_LENGTH_NAME)
        if length is None:  # JSON with binary tensors behind it is in UTF-8
            body = undo_charset(request, body)
        headers: tuple[Any, ...] = request.raw_headers
        if endpoint != INFER:
            headers += ((_ENDPOINT, endpoint),)
        dialect = self._dialects[endpoint]
        size = _json_size(body, length)
        if endpoint == INFER and self._memory.is_enabled and body.find(REGION_MEMBER, 0, size) >= 0:
            in_memory = with_binary_tensors(self._memory, body, size, request.hold)
            if in_memory is not None:
                body, size, outputs = in_memory
                headers = tuple(pair for pair in headers if pair[0].lower() != _LENGTH_NAME)
                headers += ((_LENGTH_NAME, str(size).encode()),)
                dialect = SharedMemoryDialect(endpoint, self._memory, outputs) if outputs else dialect
        urgency = _urgency(body, size)
        sequence = self._sequence(request, model, body, size) if model.is_stateful else None
        if sequence is not None:
            headers += sequence.headers
        context = self._context
        call = HttpCall(request, context.responses, dialect, model, version, headers, protocol=OPEN_INFERENCE_REST)
        call.sequence, call.expires_in = sequence, seconds_of(urgency.get(TIMEOUT))
        call.priority = priority_in_parameter(urgency.get(PRIORITY))
        if not DEADLINE_NAMES.isdisjoint(urgency):
            read_deadline(call, deadline_in(urgency), "Parameter", seconds_since(request))
        if isinstance(dialect, EventsDialect):
            call.comment_interval = context.settings.event_comment_interval
        return context.submit(call, body)

    def _sequence(self, request: Request, model: ServedModel, body: bytes, size: int) -> SequenceRequest:
        try:
            parameters = _parameters(body, size)
        except EndpointError:
            if self._sequences.id_name not in request.headers:
                raise
            parameters = {}
        return sequence_of(self._sequences, self._serving, model, parameters, request.headers)


def _urgency(body: bytes, size: int) -> Mapping[str, Any]:
    """Return the parameters of a request if they limit its time or make it urgent; only small JSON is looked into."""
    if size > _LOOKED_INTO or not any(body.find(member, 0, size) >= 0 for member in _URGENT_MEMBERS):
        return _NO_PARAMETERS
    return _parameters(body, size)


def seconds_of(value: Any) -> float | None:
    """Return how many seconds a request with this value of the parameter `TIMEOUT` may wait for a worker, if it says.

    Raises EndpointError: the value is no time.
    """
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= _MAX_TIMEOUT:
        raise bad_request(
            f"Parameter {TIMEOUT} is {shown(value)}, it must be a number of microseconds, an integer from 0 to"
            f" {_MAX_TIMEOUT}."
        )
    return value / 1e6 or None


def _parameters(body: bytes, size: int) -> dict[str, Any]:
    """Return the parameters of a request, whose JSON has ``size`` bytes.

    Raises EndpointError: they cannot be read: the worker would not read them either, or they are too large.
    """
    from ts.apis.open_inference.json_objects import read_parameters  # few requests need it
    from ts.jobs.errors import RowFailure

    if size == 0:
        return {}
    try:
        return read_parameters({_PARAMETERS: read_member(memoryview(body)[:size], _PARAMETERS)}, "The request")
    except UnreadableJson as error:
        raise bad_request(
            f"The request body is no JSON object whose parameters can be read: {error}. (A sequence may be named in"
            " headers as well.)"
        ) from error
    except RowFailure as failure:
        raise bad_request(failure.message) from failure


def _json_size(body: bytes, length: bytes | None) -> int:
    """Return the size of a request's JSON as its header says; a header that the worker will refuse is ignored."""
    whole = len(body)
    if length is None or len(length) > _MAX_DIGITS or not length.isdigit():
        return whole
    return min(int(length), whole)
