"""From requests of the Open Inference service to jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.errors import DoorError, Failure
from torchserve_py.doors.grpc.calls import Context
from torchserve_py.doors.grpc.open_inference_messages import OpenRequest, values_of
from torchserve_py.doors.grpc.writer import Writer
from torchserve_py.doors.open_inference.answers import refuse_if_failing
from torchserve_py.doors.pipeline import Dialect, Exchange
from torchserve_py.doors.sequence_parameters import ID, sequence_of
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from ts.protocol.messages import OPEN_INFERENCE_GRPC

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.settings.table import Settings

_NUMBERS: Final = 2**64


class _GrpcDialect(Dialect):
    """The Open Inference Protocol over gRPC: messages are the worker's."""


_DIALECT: Final = _GrpcDialect()


class OpenInferenceJobs:
    """Finds models and submits requests to them; what all methods share."""

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self._serving = serving
        self._headers = SequenceHeaders(settings)
        self._stall_limit = float(settings.default_response_timeout)

    def model(self, request: OpenRequest) -> ServedModel:
        """The model that a request is for.

        Raises:
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        return self._serving.get_latest(request.head.model_name, request.version)

    def declared(self, model: ServedModel) -> Mapping[str, Any]:
        """What the model declares."""
        return self._serving.declared(model)

    def submit(self, model: ServedModel, request: OpenRequest, metadata: Any, *, more_input: bool = False) -> Exchange:
        """Make a job of a request; a refusal by the scheduler is raised by the first `Exchange.next`.

        Args:
            model: What it is for.
            request: The request.
            metadata: The call's.
            more_input: Whether further inputs follow.

        Raises:
            DoorError: The model is stateful, and the request does not say well which sequence it belongs to; or its
                time limit or its priority is none; or the workers of the model fail to start.
        """
        refuse_if_failing(self._serving, model)
        version = request.version
        sequence = self._sequence(model, request, metadata) if model.is_stateful else None
        asked = InferenceRequest(
            metadata if sequence is None else (*metadata, *sequence.headers),
            request.body,
            protocol=OPEN_INFERENCE_GRPC,
            sequence=sequence,
            by_default=version is None,
            priority=request.priority,
            expires_in=request.expires_in,
            more_input=more_input,
        )
        return Exchange(_DIALECT, self._serving, model, asked, version)

    def _sequence(self, model: ServedModel, request: OpenRequest, metadata: Any) -> SequenceRequest:
        """Which sequence a request belongs to: its parameters say so, or else TorchServe's headers in the metadata."""
        values = values_of(request.head.parameters)
        sequence_id = values.get(ID)
        if sequence_id is None:
            named = self._headers.in_metadata(metadata)
            if named is not None:
                return named
        if type(sequence_id) is int:  # a negative number stands for the unsigned one of the same bits
            values[ID] = sequence_id % _NUMBERS
        return sequence_of(self._headers, self._serving, model, values)

    def writer(self, context: Context) -> Writer:
        """What writes the messages of a call."""
        return Writer(context, self._stall_limit)


def not_one_response(model: str, count: str) -> DoorError:
    """ModelInfer has one response, and the model gave ``count``."""
    message = f'Model "{model}" has answered with {count} responses; ModelInfer has one. Use ModelStreamInfer.'
    return DoorError(Failure(501, "NotImplementedException", message))
