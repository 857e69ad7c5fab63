"""The inference service: requests become jobs, and the parts of their responses messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors import priorities
from torchserve_py.doors.errors import bad_request, failure_of
from torchserve_py.doors.grpc.calls import Behaviour, Context
from torchserve_py.doors.grpc.protos import inference_pb2 as messages
from torchserve_py.doors.grpc.refusals import Refusal, refuse_prediction
from torchserve_py.doors.grpc.writer import Writer
from torchserve_py.doors.pipeline import Dialect, Exchange
from torchserve_py.doors.sequences import SequenceHeaders, is_marked
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from ts.open_inference.wire_fields import LARGE_MESSAGE, fields_of
from ts.protocol.messages import REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.settings.table import Settings

#: How many entries a large message may have.
_MAX_FIELDS: Final = 10_000
_HEALTHY: Final = '{\n  "status": "Healthy"\n}'
_UNHEALTHY: Final = '{\n  "status": "Unhealthy"\n}'


def refuse(error: Exception) -> Refusal:
    """What a client of this service is told about an exception."""
    return refuse_prediction(failure_of(error))


def read_request(body: bytes) -> messages.PredictionsRequest:
    """Read a serialized message.

    Raises:
        ValueError: It has so many entries that reading them would keep others waiting.
        DecodeError: It is none.
    """
    if len(body) > LARGE_MESSAGE:
        fields_of(body, _MAX_FIELDS)
    return messages.PredictionsRequest.FromString(body)


class GrpcDialect(Dialect):
    """TorchServe's gRPC API."""

    def message(self, exchange: Exchange, body: bytes) -> messages.PredictionResponse:
        """The message for a part."""
        sequence = exchange.asked.sequence
        if sequence is None:
            return messages.PredictionResponse(prediction=body)
        return messages.PredictionResponse(prediction=body, sequence_id=sequence.id)


DIALECT: Final = GrpcDialect()


class Submission:
    """Turns requests into jobs; what all methods share."""

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self._serving = serving
        self._headers = SequenceHeaders(settings)
        self._start_key = settings.ts_header_key_sequence_start
        self._end_key = settings.ts_header_key_sequence_end
        self._stall_limit = float(settings.default_response_timeout)

    def model(self, request: messages.PredictionsRequest) -> ServedModel:
        """The model that a request is for.

        Raises:
            DoorError: The request names none.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        if not request.model_name:
            raise bad_request("Parameter model_name is required.")
        return self._serving.get(request.model_name, request.model_version or None)

    def sequence(self, request: messages.PredictionsRequest) -> SequenceRequest:
        """The sequence of a request; one of its own if it names none.

        Entries of ``input`` with the names of the start and the end header and the value ``true``, and one with that of
        the header that names the request, mean what the headers mean: gRPC requests have no headers.

        Raises:
            DoorError: The id is not usable, or a marker is neither true nor false.
        """
        values = request.input
        return self._headers.request_of(
            request.sequence_id,
            _text(values.get(self._start_key)),
            _text(values.get(self._end_key)),
            _text(values.get(REQUEST_ID)),
        )

    def starts(self, request: messages.PredictionsRequest) -> bool:
        """Whether the request has a start marker.

        Raises:
            DoorError: It is neither true nor false.
        """
        value = _text(request.input.get(self._start_key))
        return value is not None and is_marked(self._start_key, value)

    def submit(
        self, model: ServedModel, request: messages.PredictionsRequest, sequence: SequenceRequest | None
    ) -> Exchange:
        """Make a job of a request; a refusal by the scheduler is raised by the first `Exchange.next`.

        An entry of ``input`` with the name of the header for the priority means what that means.

        Raises:
            DoorError: Its priority is none.
        """
        version = request.model_version or None
        row = [(name, "", value) for name, value in request.input.items()]
        urgency = _text(request.input.get(priorities.HEADER))
        priority = 0 if urgency is None else priorities.of_text(urgency, "Input")
        headers = () if sequence is None else sequence.headers
        asked = InferenceRequest(headers, row, sequence=sequence, by_default=version is None, priority=priority)
        return Exchange(DIALECT, self._serving, model, asked, version)

    def writer(self, context: Context) -> Writer:
        """What writes the messages of a call."""
        return Writer(context, self._stall_limit)


class InferenceService:
    """All methods but `StreamPredictions2`."""

    def __init__(self, serving: Serving, submission: Submission) -> None:
        self._serving = serving
        self._submission = submission

    @property
    def methods(self) -> Mapping[str, Behaviour]:
        """What serves each method."""
        return {
            "Ping": self.ping,
            "Predictions": self.predictions,
            "StreamPredictions": self.stream_predictions,
        }

    async def ping(self, request: Any, context: Context) -> messages.TorchServeHealthResponse:
        """Whether every model has the workers it should have."""
        return messages.TorchServeHealthResponse(health=_HEALTHY if self._serving.healthy() else _UNHEALTHY)

    async def predictions(self, request: messages.PredictionsRequest, context: Context) -> messages.PredictionResponse:
        """One message in, one out; the parts of a streamed response are joined.

        Raises:
            DoorError: The request is refused, or failed.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        exchange = self._submit(request)
        try:
            part = await exchange.next()
            bodies = [part.body]
            while part.more:
                part = await exchange.next()
                bodies.append(part.body)
            return DIALECT.message(exchange, bodies[0] if len(bodies) == 1 else b"".join(bodies))
        finally:
            exchange.cancel()

    async def stream_predictions(self, request: messages.PredictionsRequest, context: Context) -> None:
        """One message in, one out for each part of the response.

        Raises:
            DoorError: The request is refused, or failed.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
            ReaderStalledError: The client has stopped reading.
        """
        exchange = self._submit(request)
        writer = self._submission.writer(context)
        try:
            more = True
            while more:
                part = await exchange.next()
                more = part.more
                await writer.write(DIALECT.message(exchange, part.body))
        finally:
            writer.close()
            exchange.cancel()

    def _submit(self, request: messages.PredictionsRequest) -> Exchange:
        submission = self._submission
        model = submission.model(request)
        sequence = submission.sequence(request) if model.is_stateful or request.sequence_id else None
        return submission.submit(model, request, sequence)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
