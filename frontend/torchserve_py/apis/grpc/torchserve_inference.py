"""TorchServe's inference service: requests become jobs, and parts of responses become messages."""

from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final

from torchserve_py.apis.grpc.grpc_call import GrpcCall, GrpcDialect
from torchserve_py.apis.grpc.method_table import GrpcMethod, account_of, client_of
from torchserve_py.apis.grpc.protos.inference_pb2 import (
    PredictionResponse,
    PredictionsRequest,
    TorchServeHealthResponse,
)
from torchserve_py.apis.grpc.refusals import GrpcRefusal, code_of, java_name, torchserve_refusal
from torchserve_py.apis.grpc.two_way import REQUEST_ERRORS, CarriedRequest, TwoWayCall
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import USER_HEADER, VERSION_HEADER, SequenceRequest
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import EndpointError, bad_request, failure_of, handler_failure
from torchserve_py.endpoints.requests import PRIORITY_HEADER, priority_in_text
from torchserve_py.endpoints.sequences import (
    CLAIM_NAMES,
    SequenceHeaders,
    StepClaim,
    check_metadata_once,
    claim_of,
    claim_within,
    is_marked,
)
from torchserve_py.endpoints.time_limits import DEADLINE_NAMES, read_deadline
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.rpc import EOF, Rpc
from ts.apis.open_inference.wire_fields import LARGE_MESSAGE, fields_of

#: The metadata that decides on the version, and goes on as headers.
_OF_TRAFFIC: Final = frozenset({VERSION_HEADER, USER_HEADER})
#: How many entries a large message may have.
_MAX_FIELDS: Final = 10_000
_HEALTHY: Final = '{\n  "status": "Healthy"\n}'
_UNHEALTHY: Final = '{\n  "status": "Unhealthy"\n}'

#: Failures before a request is queued, for which TorchServe answers INTERNAL: reasons by failure type, and causes.
_BEFORE_QUEUEING: Final = {
    "BadRequestException": "BadRequestException.()",
    "ModelNotFoundException": java_name("ModelNotFoundException"),
    "ModelVersionNotFoundException": java_name("ModelVersionNotFoundException"),
}
_NOT_QUEUED: Final = frozenset(
    {
        Cause.no_worker,
        Cause.queue_full,
        Cause.overloaded,
        Cause.not_loaded,
        Cause.sequence_queue_full,
        Cause.sequence_capacity,
        Cause.deadline_capacity,
    }
)


class TorchServeMessages(GrpcDialect):
    """TorchServe's gRPC API. Every message names the sequence: the server may have chosen the id."""

    has_torchserve_words: ClassVar[bool] = True

    def refusal(self, error: Exception) -> GrpcRefusal:
        failure = failure_of(error)
        cause = failure.cause
        if not cause and failure.type in _BEFORE_QUEUEING:
            return GrpcRefusal(StatusCode.INTERNAL, failure.message, _BEFORE_QUEUEING[failure.type])
        if cause in _NOT_QUEUED:
            return GrpcRefusal(StatusCode.INTERNAL, failure.message, "InternalServerException.()", cause)
        is_late = cause in (Cause.client_timeout, Cause.deadline_missed)
        return torchserve_refusal(failure, StatusCode.DEADLINE_EXCEEDED if is_late else code_of(failure.status))

    def answer(self, call: GrpcCall, part: Part) -> Any:
        _check(call, part)
        return self._joined(call, part) if part.more else _message(call, part.body)

    def messages(self, call: GrpcCall, parts: Iterable[Part]) -> Iterable[PredictionResponse]:
        messages = []
        for part in parts:
            _check(call, part)
            messages.append(_message(call, part.body))
        return messages

    async def _joined(self, call: GrpcCall, part: Part) -> PredictionResponse:
        bodies = [part.body]
        while part.more:
            part = await call.next_usable()
            bodies.append(part.body)
        return _message(call, b"".join(bodies))

    def failure(self, error: Exception, sequence_id: str) -> PredictionResponse:
        """Return the message for a failed request in a call that goes on."""
        return PredictionResponse(status=self.refusal(error).status(), sequence_id=sequence_id or None)


DIALECT: Final = TorchServeMessages()
NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})


class InferenceService:
    def __init__(self, settings: Settings, serving: Serving, open_calls: set[TwoWayCall]) -> None:
        self._serving = serving
        self._open_calls = open_calls
        self._max_request_size = settings.max_request_size
        self._headers = SequenceHeaders(settings)
        self._start_key = settings.ts_header_key_sequence_start
        self._end_key = settings.ts_header_key_sequence_end

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        token = TokenType.inference
        return {
            "Ping": GrpcMethod(self.ping, DIALECT, token),
            "Predictions": GrpcMethod(self.predictions, DIALECT, token, read_request),
            "StreamPredictions": GrpcMethod(self.stream_predictions, DIALECT, token, read_request),
            "StreamPredictions2": GrpcMethod(self.stream_predictions_2, DIALECT, token, read_request),
        }

    def ping(self, request: Any, rpc: Rpc) -> TorchServeHealthResponse:
        """Tell whether every model has its minimum of workers."""
        return TorchServeHealthResponse(health=_HEALTHY if self._serving.healthy() else _UNHEALTHY)

    def predictions(self, request: PredictionsRequest, rpc: Rpc) -> GrpcCall:
        """Answer one message with one; the parts of a streamed response are joined."""
        return self._submit_alone(request, rpc)

    def stream_predictions(self, request: PredictionsRequest, rpc: Rpc) -> Awaitable[None]:
        """Answer one message with one for each part of the response."""
        return self._submit_alone(request, rpc).stream()

    def stream_predictions_2(self, requests: Any, rpc: Rpc) -> Awaitable[None]:
        """Answer any number of messages, each with one for each part of its response."""
        return _SequenceStream(self, rpc, self._open_calls, self._max_request_size).run()

    def _submit_alone(self, request: PredictionsRequest, rpc: Rpc) -> GrpcCall:
        """Submit the only request of a call, which need not name its sequence."""
        model = self.model(request)
        sequence = None
        if model.is_stateful or request.sequence_id:
            metadata = {name: value for name, value in rpc.metadata if isinstance(value, str)}
            if len(metadata) < len(rpc.metadata):
                check_metadata_once(rpc.metadata, CLAIM_NAMES)
            sequence = self.sequence_of(request, metadata)
        return self.submit(request, rpc, model, sequence)

    def model(self, request: PredictionsRequest) -> ServedModel:
        """Return the model of a request. Raises EndpointError, ModelNotFound, ModelVersionNotFound: it names none."""
        if not request.model_name:
            raise bad_request("Parameter model_name is required.")
        return self._serving.get(request.model_name, request.model_version or None)

    def starts(self, request: PredictionsRequest) -> bool:
        """Return whether a request has a start marker; raises EndpointError for one that is neither true nor false."""
        return is_marked(f"Input {self._start_key}", _text(request, self._start_key))

    def sequence_of(self, request: PredictionsRequest, metadata: Mapping[str, str] = NO_METADATA) -> SequenceRequest:
        """Return the sequence that a request names, or one of its own.

        ``metadata`` may say which step it is, where the call has one request. Raises EndpointError: an id, a number or
        a marker is wrong, or the request and the metadata say two things.
        """
        start, end = _text(request, self._start_key), _text(request, self._end_key)
        claim = claim_within(StepClaim(*(_text(request, key) for key in CLAIM_NAMES)), claim_of(metadata))
        return self._headers.of_values(request.sequence_id, start, end, claim)

    def submit(
        self, request: PredictionsRequest, rpc: Rpc, model: ServedModel, sequence: SequenceRequest | None
    ) -> GrpcCall:
        """Make a job of a request.

        A request of gRPC has no headers: entries of ``input`` with the names of the headers for the priority, for
        deadlines, for the start and the end of a sequence, and for the id of the request mean what the headers mean.
        Of the call's metadata, what decides on the version counts. Raises EndpointError: the priority or a deadline is
        invalid.
        """
        account = account_of(rpc, model.name)
        version = request.model_version or None
        row = [(name, "", value) for name, value in request.input.items()]
        urgency = _text(request, PRIORITY_HEADER)
        priority = 0 if urgency is None else priority_in_text(urgency, "Input")
        headers = [pair for pair in rpc.metadata if pair[0] in _OF_TRAFFIC]
        call = GrpcCall(
            headers if sequence is None else (*headers, *sequence.headers),
            row,
            sequence=sequence,
            by_default=version is None,
            priority=priority,
            answer_in=rpc.seconds_left,
            via="grpc",
            client=client_of(rpc),
            account=account,
        )
        if not DEADLINE_NAMES.isdisjoint(request.input):
            read_deadline(call, lambda name: _text(request, name), "Input")
        call.received(rpc, DIALECT, model, version)
        self._serving.submit(model, call)
        return call


class _SequenceStream(TwoWayCall):
    """A call of `StreamPredictions2`: every request names its sequence; a failed one is answered with a status."""

    def __init__(self, service: InferenceService, rpc: Rpc, open_calls: set[TwoWayCall], max_request_size: int) -> None:
        super().__init__(rpc, open_calls, max_request_size)
        self._service = service

    async def _read(self) -> None:
        while (message := await self._next()) is not EOF:
            self._take(self._carried(message))

    def _carried(self, message: PredictionsRequest) -> CarriedRequest:
        service = self._service
        request = CarriedRequest(message.ByteSize(), partial(_failure, message.sequence_id))
        sequence_id = message.sequence_id
        try:
            request.model = model = service.model(message)
            if not sequence_id and not service.starts(message):
                raise bad_request("Parameter sequenceId is required.")
            sequence = service.sequence_of(message)
            sequence_id = sequence.id
            request.submit = partial(service.submit, message, self._rpc, model, sequence)
        except REQUEST_ERRORS as error:
            request.refuse(error)
        request.sequence = (message.model_name, message.model_version, sequence_id)
        return request


def _failure(sequence_id: str, request: CarriedRequest, error: Exception) -> Iterable[PredictionResponse]:
    sequence = None if request.call is None else request.call.sequence
    return (DIALECT.failure(error, sequence_id if sequence is None else sequence.id),)


def read_request(body: bytes) -> PredictionsRequest:
    """Read a serialized message.

    Raises ValueError: the message has so many entries that reading them would hold up the event loop; DecodeError: the
    bytes are no such message.
    """
    if len(body) > LARGE_MESSAGE:
        fields_of(body, _MAX_FIELDS)
    return PredictionsRequest.FromString(body)


def _check(call: GrpcCall, part: Part) -> None:
    """Raise EndpointError if a part says by its status that the model's code has failed: messages have no status.

    That of a TorchServe handler, which TorchServe leaves out, is the handler's own; here it stands for an exception.
    """
    if part.status >= 400 and call.model is not None and not call.model.contract.handlers:
        text = part.reason or bytes(part.body).decode("utf-8", "replace")
        raise EndpointError(handler_failure(part.status, text, part.headers, part.body))


def _message(call: GrpcCall, body: bytes | bytearray) -> PredictionResponse:
    body = bytes(body)  # protobuf takes no other type
    sequence = call.sequence
    if sequence is None:
        return PredictionResponse(prediction=body)
    return PredictionResponse(prediction=body, sequence_id=sequence.id)


def _text(request: PredictionsRequest, key: str) -> str | None:
    """Return the entry of an input that stands for a header, or None. Raises EndpointError: it is not UTF-8."""
    value = request.input.get(key)
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise bad_request(f"Input {key!r} is {value!r}, which is not UTF-8.") from None
