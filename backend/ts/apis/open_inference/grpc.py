"""The gRPC form of requests and responses: serialized ``inference.ModelInferRequest`` and ``ModelInferResponse``.

A response is raw (``raw_output_contents``) or typed (``contents``), whichever its client can read: typed for clients
that sent typed contents and none of the parameters that only Triton's clients send, raw for all others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from ts.apis.open_inference.json_response import selected_outputs
from ts.apis.open_inference.protos import infer_pb2
from ts.apis.open_inference.tensors import check, checked_count, flat_list, raw_bytes, whole_shape
from ts.apis.open_inference.types import (
    Headers,
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestedOutput,
    Tensor,
)
from ts.apis.open_inference.wire_fields import LARGE_MESSAGE, fields_of, varint
from ts.handler_utils.shapes import shown
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import DATATYPES, FLOATS
from ts.protocol.frames import Buffer

#: By datatype, the field of the typed form with its elements; FP16 and BF16 have none.
_CONTENTS: Final = {name: datatype.contents for name, datatype in DATATYPES.items() if datatype.contents}
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
#: Parameters that only Triton's clients send, which read the raw form only; and the prefix of further ones.
_TRITON_KEYS: Final = frozenset(("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"))
_TRITON_PREFIX: Final = "triton_"
#: The tags of typed contents that are packed as the raw form is.
_PACKED: Final = {"BOOL": b"\x0a", "FP32": b"\x32", "FP64": b"\x3a"}
#: The number of elements from which on typed contents are not read one by one.
_MANY: Final = 1000
#: The tag of ModelInferResponse.raw_output_contents.
_RAW_OUTPUT: Final = b"\x32"
#: The number of ModelInferRequest.raw_input_contents.
_RAW_INPUT_NUMBER: Final = 7
_NAN: Final = float("nan")
#: Parameters of inputs and outputs that only Triton supports, and what to do instead.
_UNSUPPORTED: Final = {
    "shared_memory_region": "only ModelInfer takes it, with shared_memory_keys set: send tensors in the message",
    "classification": "ask for the output itself",
}


@dataclass(slots=True)
class GrpcRequest:
    """A request that came over gRPC; a `ts.apis.open_inference.types.Received`."""

    headers: Sequence[tuple[Any, Any]]
    request: InferenceRequest
    answers_raw: bool  # whether its client reads the raw form

    def encode(self, response: InferenceResponse) -> tuple[Headers, Buffer]:
        """Return the trailing metadata and the serialized message for a response.

        The parameter ``headers`` becomes metadata. Other parameters are sent if gRPC has a type for them: booleans,
        integers, floats and text. Raises Failure: the client asked for an output that does not exist, or a value does
        not fit its datatype.
        """
        message = infer_pb2.ModelInferResponse()
        outputs = selected_outputs(self.request, response)
        headers = response.parameters.get("headers")
        raw = self.answers_raw or any(output.datatype not in _CONTENTS for output in outputs)
        try:
            message.model_name = response.model_name
            message.model_version = response.model_version or ""
            message.id = (self.request.id if response.id is None else response.id) or ""
            _set_parameters(message.parameters, response.parameters)
            for output in outputs:
                sent = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
                _set_parameters(sent.parameters, output.parameters)
                if not raw:
                    _set_contents(sent.contents, output)
        except (TypeError, ValueError) as error:
            raise RowFailure(500, f"The response cannot be sent over gRPC: {error}") from error
        body = message.SerializeToString()
        if raw:
            body = b"".join((body, *_raw_contents(outputs)))
        given = headers.items() if isinstance(headers, Mapping) else ()
        return [(str(name).lower(), str(value)) for name, value in given], body


def receive(headers: Sequence[tuple[Any, Any]], body: bytes, *, as_mlserver: bool = False) -> GrpcRequest:
    """Decode a ``ModelInferRequest``. Raises Failure: it is none, or data do not fit their datatype and shape."""
    message, raw = _parse(body)
    if raw and len(raw) != len(message.inputs):
        raise RowFailure(
            400,
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs; it needs one for each.",
        )
    inputs = [
        _input(sent, raw[index] if raw else None, as_mlserver=as_mlserver) for index, sent in enumerate(message.inputs)
    ]
    outputs = [RequestedOutput(sent.name, _parameters(sent.parameters)) for sent in message.outputs]
    for output in outputs:
        _refuse_unsupported(f"output {output.name!r}", output.parameters)
    parameters = _parameters(message.parameters)
    request = InferenceRequest(
        message.model_name, message.model_version, message.id or None, parameters, inputs, outputs or None
    )
    is_tritons = any(key in _TRITON_KEYS or key.startswith(_TRITON_PREFIX) for key in parameters)
    answers_raw = bool(raw) or is_tritons or not any(len(each.data) for each in inputs)
    return GrpcRequest(headers, request, answers_raw=answers_raw)


def _parse(body: bytes) -> tuple[infer_pb2.ModelInferRequest, Sequence[bytes | memoryview]]:
    """Return the message and its raw contents; those of a large message are views of the body instead of copies."""
    try:
        if len(body) < LARGE_MESSAGE:
            message = infer_pb2.ModelInferRequest.FromString(body)
            return message, message.raw_input_contents
        view, others, raw = memoryview(body), [], []
        for field in fields_of(body):
            if field.number == _RAW_INPUT_NUMBER:
                raw.append(view[field.value : field.end])
            else:
                others.append(view[field.start : field.end])
        return infer_pb2.ModelInferRequest.FromString(b"".join(others)), raw
    except (DecodeError, ValueError) as error:
        raise RowFailure(400, f"The message is no inference.ModelInferRequest: {error}") from error


def _input(
    sent: infer_pb2.ModelInferRequest.InferInputTensor, raw: bytes | memoryview | None, *, as_mlserver: bool
) -> Tensor:
    parameters = _parameters(sent.parameters)
    if parameters:
        _refuse_unsupported(f"input {sent.name!r}", parameters)
    shape = list(sent.shape)
    if shape and min(shape) < (-1 if as_mlserver else 0):
        raise RowFailure(400, f"Input {sent.name!r} has the shape {shown(shape)}; no dimension may be negative.")
    data: list[Any] | bytes | memoryview
    if raw is None:
        data = _typed_data(sent)
    elif sent.HasField("contents") and sent.contents.ListFields():
        raise RowFailure(
            400, f"Input {sent.name!r} has contents, and the request has raw_input_contents; use one form."
        )
    else:
        data = raw
    tensor = Tensor(sent.name, sent.datatype, shape, data, parameters)
    tensor.shape = whole_shape(tensor)
    if as_mlserver and isinstance(data, list) and sent.datatype == "BYTES":
        checked_count(sent.name, tensor.shape)
    else:
        check(tensor)
    return tensor


def _typed_data(sent: infer_pb2.ModelInferRequest.InferInputTensor) -> list[Any] | memoryview:
    name = _CONTENTS.get(sent.datatype)
    if name is None:
        if sent.datatype not in DATATYPES:
            return []  # `check` says so
        raise RowFailure(400, f"Input {sent.name!r}: {sent.datatype} has no typed contents; use raw_input_contents.")
    elements = getattr(sent.contents, name)
    if len(elements) >= _MANY and sent.datatype in _PACKED:
        packed = sent.contents.SerializeToString()
        fields = fields_of(packed)
        if len(fields) == 1:
            return memoryview(packed)[fields[0].value :]
    if not elements:
        for field, _ in sent.contents.ListFields():
            raise RowFailure(400, f"Input {sent.name!r} has {field.name}; {sent.datatype} belongs in {name}.")
    return list(elements)


def _refuse_unsupported(where: str, parameters: Parameters) -> None:
    for name, instead in _UNSUPPORTED.items():
        if name in parameters:
            raise RowFailure(501, f"The parameter {name} of {where} is not supported here; {instead}.")


def _parameters(sent: Mapping[str, infer_pb2.InferParameter]) -> Parameters:
    if not sent:
        return {}
    choices = [(name, parameter, parameter.WhichOneof("parameter_choice")) for name, parameter in sent.items()]
    return {name: getattr(parameter, choice) for name, parameter, choice in choices if choice is not None}


def _set_parameters(target: Any, parameters: Parameters) -> None:
    for name, value in parameters.items():
        match value:
            case bool():
                target[name].bool_param = value
            case int() if _INT64_MIN <= value <= _INT64_MAX:
                target[name].int64_param = value
            case int() if 0 <= value <= _UINT64_MAX:
                target[name].uint64_param = value
            case float():
                target[name].double_param = value
            case str():
                target[name].string_param = value
            case _:
                continue  # gRPC has no type for it


def _set_contents(target: infer_pb2.InferTensorContents, output: Tensor) -> None:
    if isinstance(output.data, list) or output.datatype not in _PACKED:
        getattr(target, _CONTENTS[output.datatype]).extend(_elements(output))
        return
    data = raw_bytes(output)
    target.MergeFromString(b"".join((_PACKED[output.datatype], varint(len(data)), data)))


def _elements(output: Tensor) -> Iterable[Any]:
    elements = flat_list(output)
    if output.datatype == "BYTES":
        return [element.encode() if isinstance(element, str) else bytes(element) for element in elements]
    if output.datatype in FLOATS:
        return [_NAN if element is None else element for element in elements]
    return elements


def _raw_contents(outputs: Sequence[Tensor]) -> Iterable[Buffer]:
    """Yield the fields behind a serialized response that hold its data, without a further copy of them."""
    for output in outputs:
        data = raw_bytes(output)
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        yield _RAW_OUTPUT
        yield varint(size)
        yield data
