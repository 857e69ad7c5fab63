"""Open Inference requests for a TorchServe handler: what the handler gets for one, and what its result becomes.

``docs/open-inference.md`` has the rules as tables. The only input stands under ``body``, too, so that a handler that
knows nothing of the protocol finds it; with an envelope of KServe's the row is the request as JSON would have it.
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from ts.apis.open_inference.json_response import LENGTH_HEADER
from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import flat, flat_list, numpy_of, tensor_of
from ts.apis.open_inference.types import InferenceRequest, InferenceResponse, Received, Tensor
from ts.context import Context
from ts.jobs.errors import HandlerFailed, RowFailure
from ts.jobs.row import Row, RowReader
from ts.protocol.datatypes import DATATYPES, FLOATS
from ts.protocol.frames import Buffer
from ts.protocol.media_types import BYTES
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow
from ts.torch_handler.request_envelope.envelope_tensors import write_tensor
from ts.utils.util import PredictionException

#: The envelopes that want requests as JSON has them.
_AS_JSON = ("kserve", "kservev2")
#: The raw form of an empty text: its length.
_SIZE_OF_EMPTY_TEXT = 4
#: The members of an output that a handler has written itself.
_OUTPUT = {"name", "datatype", "shape", "data"}


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads the rows of one handler.

    Args:
        declared: The model's declarations, as in `ts.protocol.messages.Loaded`.
        envelope: The name of the handler's envelope, if it has one.
    """
    return OpenInferenceRows(context, declared, envelope).read


def row_of_zeros(job_id: str, inputs: Iterable[Sequence[Any]]) -> InferRow:
    """Return a request with tensors of zeros, or empty texts, for a warm-up; each input is name, datatype and shape."""
    described: list[dict[str, Any]] = []
    total = 0
    for name, datatype, shape in inputs:
        size = prod(shape) * (DATATYPES[datatype].size or _SIZE_OF_EMPTY_TEXT)
        parameters = {"binary_data_size": size}
        described.append({"name": name, "datatype": datatype, "shape": shape, "parameters": parameters})
        total += size
    head = json.dumps({"inputs": described}).encode()
    headers = ((LENGTH_HEADER.lower().encode(), b"%d" % len(head)),)
    return InferRow(job_id, headers, BYTES, head + bytes(total), OPEN_INFERENCE_REST, False)


class OpenInferenceRows:
    """Reads the rows of one handler and writes its answers."""

    def __init__(self, context: Context, declared: Mapping[str, Any], envelope: str | None) -> None:
        self._model_name = context.model_name
        self._model_version: str = context.system_properties.get("model_version", "")
        self._declared = declared
        self._as_json = envelope in _AS_JSON

    def read(self, wire_row: InferRow) -> Row:
        """Return the row as the handler sees it. Raises Failure: the row is not a valid request."""
        received = receive(wire_row, self._declared)
        row = Row(wire_row.job_id, self._values(received), wire_row.headers)
        row.open_inference = received.request
        row.encode = partial(self._encode, received)
        return row

    def _encode(self, received: Received, row: Row, value: Any, more: bool) -> Buffer:
        """Return the body for a result; headers are added to the response's. An empty last part only ends the stream.

        Raises Failure: the handler chose the status of an error, or the protocol cannot represent the result.
        """
        if row.streaming and not more and (value is None or (isinstance(value, str | bytes | list) and not value)):
            return b""
        status = row.get_response_status_code()
        if status is not None and status >= 400:
            raise RowFailure(status, _message(value))
        given = value.get("outputs") if isinstance(value, dict) else None
        if isinstance(given, list) and all(isinstance(each, dict) and each.keys() >= _OUTPUT for each in given):
            outputs = [_output(each) for each in given]
            parameters = dict(value.get("parameters") or {})
        else:
            outputs, parameters = outputs_of(value, received.request, self._declared.get("outputs") or ()), {}
        response = InferenceResponse(self._model_name, self._model_version, None, parameters, outputs)
        headers, body = received.encode(response)
        if headers and not row.streaming:
            own = row.get_response_headers()
            for name, text in headers:
                for other in [each for each in own if each.lower() == name.lower()]:
                    del own[other]
                own[name] = text
        return body

    def _values(self, received: Received) -> dict[str, Any]:
        request = received.request
        if self._as_json:
            inputs = [
                {"name": each.name, "datatype": each.datatype, "shape": each.shape, "data": _envelope_data(each)}
                for each in request.inputs
            ]
            body = {"id": request.id, "model_name": self._model_name, "parameters": request.parameters}
            return {"body": {**body, "inputs": inputs}}
        values = {each.name: _value(each) for each in request.inputs}
        if len(request.inputs) == 1:
            values.setdefault("body", values[request.inputs[0].name])
        return values


def _envelope_data(tensor: Tensor) -> Any:
    """Return the data for the envelope: an array at once, if that saves a list of many numbers."""
    if tensor.datatype == "BYTES":
        return [_json_text(each) if isinstance(each, bytes) else each for each in flat_list(tensor)]
    if isinstance(tensor.data, list) or tensor.datatype == "BF16":
        return flat_list(tensor)
    return numpy_of(tensor).reshape(-1)


def _json_text(element: bytes) -> str:
    """Return an element of BYTES as JSON has it: text, or Base64 of what is none."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        return base64.b64encode(element).decode()


def _value(tensor: Tensor) -> Any:
    if tensor.datatype == "BYTES":
        elements = flat_list(tensor)
        return elements[0] if len(elements) == 1 else elements
    from ts.apis.open_inference.input_array import InputArray  # numpy, which not every worker has

    array = numpy_of(tensor)
    # Handlers may write into their inputs, as into the body of any other request.
    return InputArray.of(array if array.flags.writeable else array.copy())


def _output(value: Mapping[str, Any]) -> Tensor:
    name, datatype, data = str(value["name"]), str(value["datatype"]), value["data"]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(data, numpy.ndarray) and data.dtype.kind in "biuf":
        data = tensor_of(name, data, datatype).data
    elif not isinstance(data, bytes | bytearray | memoryview):
        data = flat(data)
        if datatype == "BYTES":
            data = [json.dumps(each) if isinstance(each, dict) else each for each in data]
    shape = [int(size) for size in value["shape"]]
    return Tensor(name, datatype, shape, data, dict(value.get("parameters") or {}))


def _message(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("error") or value.get("message") or json.dumps(value, default=str)
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


Declared = Sequence[Mapping[str, Any]]


def outputs_of(value: Any, request: InferenceRequest, declared: Declared) -> list[Tensor]:
    """Return the outputs for a result. Raises Failure: a value does not fit its declared datatype, or any."""
    datatypes = {each["name"]: each["datatype"] for each in declared}
    if isinstance(value, Mapping) and _holds_outputs(value, request, datatypes):
        return [_tensor(str(name), each, datatypes.get(name)) for name, each in value.items()]
    several = isinstance(value, list | tuple) and len(value) > 0
    if several and (all(map(_is_array, value)) or 1 < len(declared) == len(value)):
        names = _names(len(value), request, declared)
        return [_tensor(name, each, datatypes.get(name)) for name, each in zip(names, value, strict=True)]
    (name,) = _names(1, request, declared)
    return [_tensor(name, value, datatypes.get(name))]


def _holds_outputs(value: Mapping[Any, Any], request: InferenceRequest, datatypes: Mapping[str, str]) -> bool:
    """Return whether the values of a dict are outputs by name, as opposed to a dict that is one value."""
    if datatypes:
        return bool(value) and value.keys() <= datatypes.keys()
    if request.outputs and value.keys() >= {each.name for each in request.outputs}:
        return True
    return bool(value) and all(map(_is_array, value.values()))


def _names(count: int, request: InferenceRequest, declared: Declared) -> list[str]:
    if len(declared) >= count:
        return [each["name"] for each in declared[:count]]
    if request.outputs and len(request.outputs) == count:
        return [each.name for each in request.outputs]
    given = [each.name for each in request.inputs[:count]]
    return given + [f"output-{number}" for number in range(len(given), count)]


def _is_array(value: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray)
    )


def _tensor(name: str, value: Any, datatype: str | None) -> Tensor:
    if isinstance(value, str):
        return Tensor(name, "BYTES", [1], [value])
    if isinstance(value, bytes | bytearray | memoryview):
        return Tensor(name, "BYTES", [1], [bytes(value)])
    if _is_array(value):
        return _of_array(name, value, datatype)
    if isinstance(value, list) and value and all(isinstance(each, str | bytes | bytearray) for each in value):
        return Tensor(name, "BYTES", [len(value)], value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    try:
        written = write_tensor(name, value)
    except PredictionException as error:
        raise HandlerFailed(error.message) from error
    tensor = Tensor(name, written["datatype"], written["shape"], written["data"])
    return tensor if datatype is None or datatype == tensor.datatype else _converted(tensor, datatype)


def _of_array(name: str, value: Any, datatype: str | None) -> Tensor:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from ts.jobs.device_copies import to_numpy

        datatype = "BF16" if datatype is None and value.dtype == torch.bfloat16 else datatype
        value = to_numpy(value)
    return tensor_of(name, value if value.ndim else value.reshape(1), datatype)


def _converted(tensor: Tensor, datatype: str) -> Tensor:
    """Return a tensor of Python's numbers with the datatype that was declared for it."""
    is_number = tensor.datatype in ("INT64", "BOOL") or (tensor.datatype == "FP64" and datatype in FLOATS)
    if datatype == "BYTES" or datatype not in DATATYPES or not (is_number or tensor.datatype == "FP32"):
        raise RowFailure(
            500, f"Output {tensor.name!r} is declared as {datatype}, but the handler returned {tensor.datatype}."
        )
    return Tensor(tensor.name, datatype, tensor.shape, tensor.data)
