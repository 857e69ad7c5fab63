"""Messages of the Open Inference service that the door reads and writes as bytes.

Requests and responses are large and of many parts, and the door has no use for most of them: it reads a request's head
and passes the bytes on, and it puts a frame around the bytes of a response. Protobuf allows that: a field that is
appended to a serialized message belongs to it, and of a map's entries with one key the last counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from torchserve_py.doors import priorities
from torchserve_py.doors.errors import bad_request
from torchserve_py.doors.grpc.protos.open_inference_head_pb2 import RequestHead
from torchserve_py.doors.grpc.protos.open_inference_pb2 import ModelStreamInferResponse
from torchserve_py.doors.grpc.refusals import CAUSE_KEY, Refusal
from ts.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from ts.open_inference.wire_fields import LARGE_MESSAGE, fields_of, varint

#: Whether a message of a stream is the last one that answers its request.
FINAL_RESPONSE: Final = "triton_final_response"
#: Whether the client wants a last message even where there is nothing more to say.
EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_TIMEOUT: Final = "timeout"

#: Fields that only Triton's clients send.
_TRITON_KEYS: Final = frozenset(("sequence_id", "sequence_start", "sequence_end", priorities.PARAMETER, _TIMEOUT))
_TRITON_PREFIX: Final = "triton_"
_RAW_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_INPUTS: Final = ModelInferRequest.INPUTS_FIELD_NUMBER
_PARAMETERS: Final = ModelInferRequest.InferInputTensor.PARAMETERS_FIELD_NUMBER
_SHARED_MEMORY: Final = b"shared_memory_region"

#: How many fields (tensors, parameters, entries of the input) a large message may have: looking for them takes time.
MAX_FIELDS: Final = 10_000
_HEAD_NUMBERS: Final = frozenset(RequestHead.DESCRIPTOR.fields_by_number)
#: The tag of ModelStreamInferResponse.infer_response.
_INFER_RESPONSE: Final = b"\x12"
_FLAGS: Final = {
    final: ModelInferResponse(parameters={FINAL_RESPONSE: InferParameter(bool_param=final)}).SerializeToString()
    for final in (False, True)
}


class OpenRequest(NamedTuple):
    """A request: what the door has read of it, and all of it as it came."""

    head: RequestHead
    body: bytes

    @property
    def version(self) -> str | None:
        """The version that it names, if it names one."""
        return self.head.model_version or None

    @property
    def expires_in(self) -> float | None:
        """How many seconds it may wait for a worker, if it says so.

        Raises:
            DoorError: What it says is no time.
        """
        if not self.head.parameters or _TIMEOUT not in self.head.parameters:
            return None
        value = value_of(self.head.parameters[_TIMEOUT])
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise bad_request(f"Parameter {_TIMEOUT}: {value!r} is no number of microseconds.")
        return value / 1e6 or None

    @property
    def priority(self) -> int:
        """How urgent it is.

        Raises:
            DoorError: What it says is no priority.
        """
        parameters = self.head.parameters
        if not parameters or priorities.PARAMETER not in parameters:
            return 0
        return priorities.of_parameter(value_of(parameters[priorities.PARAMETER]))

    @property
    def wants_empty_final(self) -> bool:
        """Whether its client wants a last message even where there is nothing more to say."""
        parameters = self.head.parameters
        return bool(parameters) and EMPTY_FINAL_RESPONSE in parameters and parameters[EMPTY_FINAL_RESPONSE].bool_param


def read_request(body: bytes) -> OpenRequest:
    """Read the head of a serialized ``ModelInferRequest``.

    Raises:
        DoorError: It is none, or names no model.
    """
    try:
        head = RequestHead.FromString(body if len(body) < LARGE_MESSAGE else _head_of(body))
    except (DecodeError, ValueError) as error:
        raise bad_request(f"The message is no inference.ModelInferRequest: {error}") from error
    if not head.model_name:
        raise bad_request("The request has no model_name.")
    return OpenRequest(head, body)


def _head_of(body: bytes) -> bytes:
    fields = fields_of(body, MAX_FIELDS)
    return b"".join([body[field.start : field.end] for field in fields if field.number in _HEAD_NUMBERS])


def values_of(parameters: Mapping[str, InferParameter]) -> dict[str, Any]:
    """Parameters as Python's values."""
    return {name: value_of(parameter) for name, parameter in parameters.items()}


def value_of(parameter: InferParameter) -> Any:
    """The value of a parameter; None if it has none."""
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def is_tritons(request: OpenRequest) -> bool:
    """Whether only Triton's clients send such a request: it has their parameters, or raw contents.

    Raises:
        DoorError: It is no request.
    """
    if any(name in _TRITON_KEYS or name.startswith(_TRITON_PREFIX) for name in request.head.parameters):
        return True
    body = memoryview(request.body)
    try:
        fields = fields_of(body, MAX_FIELDS)
        if any(field.number == _RAW_CONTENTS for field in fields):
            return True
        inputs = [
            body[each.value : each.end] for each in fields if each.number == ModelInferRequest.INPUTS_FIELD_NUMBER
        ]
        return _is_in_shared_memory(inputs)
    except ValueError as error:
        raise bad_request(f"The message is no inference.ModelInferRequest: {error}") from error


def _is_in_shared_memory(inputs: list[memoryview]) -> bool:
    """Whether the parameters of an input say that it is elsewhere.

    Raises:
        ValueError: It is no input, or all together have too many fields.
    """
    left = MAX_FIELDS
    for tensor in inputs:
        fields = fields_of(tensor, left)
        left -= len(fields)
        for each in fields:
            if each.number == _PARAMETERS and _SHARED_MEMORY in bytes(tensor[each.value : each.end]):
                return True
    return False


def enveloped(body: bytes, *, final: bool) -> bytes:
    """A serialized ``ModelStreamInferResponse`` of a serialized response, which says whether it is the last one."""
    flag = _FLAGS[final]
    return b"".join((_INFER_RESPONSE, varint(len(body) + len(flag)), body, flag))


def empty_final(request: OpenRequest, version: str) -> bytes:
    """The envelope that says that nothing more comes."""
    head = request.head
    response = ModelInferResponse(model_name=head.model_name, model_version=version, id=head.id)
    return enveloped(response.SerializeToString(), final=True)


def enveloped_error(request: OpenRequest | None, refusal: Refusal) -> bytes:
    """The envelope that says why a request failed; None for one that could not be read."""
    response = ModelInferResponse(parameters={FINAL_RESPONSE: InferParameter(bool_param=True)})
    if request is not None:
        response.id = request.head.id
    if refusal.cause:
        response.parameters[CAUSE_KEY].string_param = refusal.cause
    return ModelStreamInferResponse(error_message=refusal.message, infer_response=response).SerializeToString()
