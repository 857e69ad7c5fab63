"""Requests of the Open Inference service, from bytes to jobs.

A request is large and the endpoint needs little of it: the endpoint reads the head and passes the bytes on.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from torchserve_py.apis.grpc.grpc_call import GrpcCall, GrpcDialect
from torchserve_py.apis.grpc.method_table import account_of, client_of
from torchserve_py.apis.grpc.protos.open_inference_head_pb2 import RequestHead
from torchserve_py.apis.open_inference.answers import refuse_if_failing
from torchserve_py.apis.open_inference.infer_endpoints import TIMEOUT, seconds_of
from torchserve_py.apis.open_inference.sequence_parameters import ID, sequence_of
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.requests import PRIORITY, priority_in_parameter
from torchserve_py.endpoints.sequences import SequenceHeaders, check_metadata_once
from torchserve_py.endpoints.time_limits import DEADLINE_NAMES, deadline_in, read_deadline
from torchserve_py.net.http2.rpc import Rpc
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest
from ts.apis.open_inference.wire_fields import LARGE_MESSAGE, fields_of
from ts.protocol.messages import OPEN_INFERENCE_GRPC

#: The parameter by which a client wants a last message even if the model has no further response.
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"

#: Parameters that only Triton's clients send.
_TRITON_KEYS: Final = frozenset(("sequence_id", "sequence_start", "sequence_end", PRIORITY, TIMEOUT))
_TRITON_PREFIX: Final = "triton_"
_RAW_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_INPUTS: Final = ModelInferRequest.INPUTS_FIELD_NUMBER
_PARAMETERS: Final = ModelInferRequest.InferInputTensor.PARAMETERS_FIELD_NUMBER
_SHARED_MEMORY: Final = b"shared_memory_region"

#: How many fields (tensors, parameters, entries of the input) a large message may have: looking for them takes time.
_MAX_FIELDS: Final = 10_000
_HEAD_NUMBERS: Final = frozenset(RequestHead.DESCRIPTOR.fields_by_number)
_NUMBERS: Final = 2**64


class OpenRequest(NamedTuple):
    """A request: its head, its parameters as Python values, and the serialized message."""

    head: RequestHead
    parameters: Mapping[str, Any]
    body: bytes

    @property
    def version(self) -> str | None:
        return self.head.model_version or None


def read_request(body: bytes) -> OpenRequest:
    """Read the head of a serialized ``ModelInferRequest``. Raises EndpointError: it is malformed, or names no model."""
    try:
        part = body
        if len(body) >= LARGE_MESSAGE:
            fields = [each for each in fields_of(body, _MAX_FIELDS) if each.number in _HEAD_NUMBERS]
            part = b"".join([body[each.start : each.end] for each in fields])
        head = RequestHead.FromString(part)
    except (DecodeError, ValueError) as error:
        raise bad_request(f"The message is no inference.ModelInferRequest: {error}") from error
    if not head.model_name:
        raise bad_request("The request has no model_name.")
    return OpenRequest(head, values_of(head.parameters), body)


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of parameters, None for a parameter without a value."""
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(parameter, choice)
    return values


def is_from_triton(request: OpenRequest) -> bool:
    """Return whether only Triton's clients send such a request: with their parameters, raw contents or shared memory.

    Raises EndpointError: the message is no request.
    """
    if any(name in _TRITON_KEYS or name.startswith(_TRITON_PREFIX) for name in request.parameters):
        return True
    body = memoryview(request.body)
    try:
        fields = fields_of(body, _MAX_FIELDS)
        if any(field.number == _RAW_CONTENTS for field in fields):
            return True
        return _is_in_shared_memory([body[each.value : each.end] for each in fields if each.number == _INPUTS])
    except ValueError as error:
        raise bad_request(f"The message is no inference.ModelInferRequest: {error}") from error


def _is_in_shared_memory(inputs: list[memoryview]) -> bool:
    """Return whether the parameters of an input say that the data is in shared memory.

    Raises ValueError: an input is malformed, or the inputs have too many fields.
    """
    left = _MAX_FIELDS
    for tensor in inputs:
        fields = fields_of(tensor, left)
        left -= len(fields)
        for each in fields:
            if each.number == _PARAMETERS and _SHARED_MEMORY in bytes(tensor[each.value : each.end]):
                return True
    return False


class OpenInferenceJobs:
    """Finds models and submits requests to them."""

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self.serving = serving
        self._headers = SequenceHeaders(settings)

    def model(self, request: OpenRequest) -> ServedModel:
        """Return the model that a request names. Raises ModelNotFound, ModelVersionNotFound: there is none."""
        return self.serving.get_latest(request.head.model_name, request.version)

    def submit(
        self,
        rpc: Rpc,
        dialect: GrpcDialect,
        model: ServedModel,
        request: OpenRequest,
        metadata: Any,
        *,
        more_input: bool = False,
    ) -> GrpcCall:
        """Make a job of a request; with ``more_input`` further inputs follow.

        Raises EndpointError: the sequence, a time limit or the priority of the request is invalid, or the sequence of
        a request to a stateful model is missing; or the workers of the model fail to start.
        """
        account = account_of(rpc, model.name)
        refuse_if_failing(self.serving, model)
        version = request.version
        sequence = self._sequence(model, request, metadata) if model.is_stateful else None
        call = GrpcCall(
            metadata if sequence is None else (*metadata, *sequence.headers),
            request.body,
            protocol=OPEN_INFERENCE_GRPC,
            sequence=sequence,
            by_default=version is None,
            priority=priority_in_parameter(request.parameters.get(PRIORITY)),
            expires_in=seconds_of(request.parameters.get(TIMEOUT)),
            answer_in=rpc.seconds_left,
            open_ended=more_input,
            via="grpc",
            client=client_of(rpc),
            account=account,
        )
        if not DEADLINE_NAMES.isdisjoint(request.parameters):
            read_deadline(call, deadline_in(request.parameters), "Parameter")
        call.received(rpc, dialect, model, version)
        self.serving.submit(model, call)
        return call

    def _sequence(self, model: ServedModel, request: OpenRequest, metadata: Any) -> SequenceRequest:
        sequence_id = request.parameters.get(ID)
        if type(sequence_id) is int:  # a negative number stands for the unsigned one of the same bits
            sequence_id %= _NUMBERS
        sent = {name: value for name, value in metadata if isinstance(value, str)}
        if len(sent) < len(metadata):
            named = [self._headers.id_name] if sequence_id is None else []
            check_metadata_once(metadata, (*named, *self._headers.more_names))
        return sequence_of(self._headers, self.serving, model, {**request.parameters, ID: sequence_id}, sent)
