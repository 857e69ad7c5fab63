"""The inference service: requests become jobs, and the parts of their responses messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torchserve_py.api import priorities
from torchserve_py.api.errors import DoorError, bad_request, failure_of, failure_of_job, handler_failure
from torchserve_py.api.grpc.calls import Behaviour, Context
from torchserve_py.api.grpc.protos import inference_pb2 as messages
from torchserve_py.api.grpc.refusals import Refusal, refuse_prediction
from torchserve_py.api.grpc.writer import Writer
from torchserve_py.api.sequences import SequenceHeaders, is_marked
from torchserve_py.workers.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.workers.parts import JobFailed, Part, Parts
from ts.open_inference.wire_fields import LARGE_MESSAGE, fields_of
from ts.protocol.messages import REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchserve_py.models.model import Model
    from torchserve_py.models.registry import ModelRegistry
    from torchserve_py.settings import Settings

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


class Submitted(NamedTuple):
    """A request that has become a job. ``version`` is None where the request named none."""

    parts: Parts
    name: str
    version: str | None
    sequence: SequenceRequest | None

    async def next(self) -> Part:
        """Wait for the next part.

        Raises:
            DoorError: The job failed.
        """
        try:
            part = await self.parts.next()
        except JobFailed as failed:
            raise self._failed(failed) from None
        if part.error is not None:
            raise DoorError(handler_failure(part.status, part.error))
        return part

    async def rest(self) -> bytes:
        """Wait for the parts that are left, and join them.

        Raises:
            DoorError: The job failed.
        """
        bodies = []
        more = True
        while more:
            part = await self.next()
            more = part.more
            bodies.append(part.body)
        return b"".join(bodies)

    def response(self, body: bytes) -> messages.PredictionResponse:
        """The message for a part."""
        if self.sequence is None:
            return messages.PredictionResponse(prediction=body)
        return messages.PredictionResponse(prediction=body, sequence_id=self.sequence.id)

    def _failed(self, failed: JobFailed) -> DoorError:
        return DoorError(failure_of_job(failed.cause, self.name, self.version, self.parts.job.sequence_id))


class Submission:
    """Turns requests into jobs; what all methods share."""

    def __init__(self, settings: Settings, registry: ModelRegistry) -> None:
        self._registry = registry
        self._headers = SequenceHeaders(settings)
        self._start_key = settings.ts_header_key_sequence_start
        self._end_key = settings.ts_header_key_sequence_end
        self._stall_limit = float(settings.default_response_timeout)

    def model(self, request: messages.PredictionsRequest) -> Model:
        """The model that a request is for.

        Raises:
            DoorError: The request names none.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        if not request.model_name:
            raise bad_request("Parameter model_name is required.")
        return self._registry.get(request.model_name, request.model_version or None)

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

    def submit(self, model: Model, request: messages.PredictionsRequest, sequence: SequenceRequest | None) -> Submitted:
        """Make a job of a request; a refusal by the scheduler is raised by the first `Submitted.next`.

        An entry of ``input`` with the name of the header for the priority means what that means.

        Raises:
            DoorError: Its priority is none.
        """
        version = request.model_version or None
        row = [(name, "", value) for name, value in request.input.items()]
        urgency = _text(request.input.get(priorities.HEADER))
        priority = 0 if urgency is None else priorities.of_text(urgency, "Input")
        parts = model.submit(
            InferenceRequest(
                () if sequence is None else sequence.headers,
                row,
                sequence=sequence if model.is_stateful else None,
                by_default=version is None,
                priority=priority,
            )
        )
        return Submitted(parts, request.model_name, version, sequence)

    def writer(self, context: Context) -> Writer:
        """What writes the messages of a call."""
        return Writer(context, self._stall_limit)


class InferenceService:
    """All methods but `StreamPredictions2`."""

    def __init__(self, registry: ModelRegistry, submission: Submission) -> None:
        self._registry = registry
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
        return messages.TorchServeHealthResponse(health=_HEALTHY if self._registry.healthy() else _UNHEALTHY)

    async def predictions(self, request: messages.PredictionsRequest, context: Context) -> messages.PredictionResponse:
        """One message in, one out; the parts of a streamed response are joined.

        Raises:
            DoorError: The request is refused, or failed.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        submitted = self._submit(request)
        try:
            part = await submitted.next()
            body = part.body if not part.more else part.body + await submitted.rest()
            return submitted.response(body)
        finally:
            submitted.parts.cancel()  # does nothing to a job that has ended; the client of any other is gone

    async def stream_predictions(self, request: messages.PredictionsRequest, context: Context) -> None:
        """One message in, one out for each part of the response.

        Raises:
            DoorError: The request is refused, or failed.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
            ReaderStalledError: The client has stopped reading.
        """
        submitted = self._submit(request)
        writer = self._submission.writer(context)
        try:
            more = True
            while more:
                part = await submitted.next()
                more = part.more
                await writer.write(submitted.response(part.body))
        finally:
            writer.close()
            submitted.parts.cancel()

    def _submit(self, request: messages.PredictionsRequest) -> Submitted:
        submission = self._submission
        model = submission.model(request)
        sequence = submission.sequence(request) if model.is_stateful or request.sequence_id else None
        return submission.submit(model, request, sequence)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
