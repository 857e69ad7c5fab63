"""Requests to a Truss by the Open Inference Protocol: tensors by name are its inputs, its result is the outputs.

Inputs are a dict from names to values as in JSON: nested lists as the shape says, text for BYTES; with ``generate``
also the request's parameters. A result that is a dict has an output for each key; any other result, and each chunk of a
stream, is the one output ``output``. What holds more than numbers or text is BYTES with its JSON.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel

from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import flat_list
from ts.apis.open_inference.types import InferenceResponse, Received, Tensor
from ts.contracts.truss.encodings import json_value, to_json
from ts.contracts.truss.reply import CLIENT_ERROR, SERVER_ERROR, Problem, TrussAnswer
from ts.contracts.truss.request_forms import Form, validate
from ts.handler_utils.asgi_scope import pseudo_header
from ts.jobs.errors import RowFailure
from ts.jobs.json_values import plain
from ts.protocol.datatypes import FLOATS
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow

#: The name of the output where the model gives it none.
OUTPUT: Final = "output"
_STREAMING: Final = ("infer_stream", "generate_stream")
#: The endpoints whose parameters are meant for the model.
_GENERATING: Final = ("generate", "generate_stream")


class TensorForm(Form):
    name = "tensors"

    def __init__(self, row: InferRow, model_name: str, model_version: str) -> None:
        self._row = row
        self._model_name = model_name
        self._model_version = model_version
        self._received: Received | None = None

    def decode(self, input_type: type[BaseModel] | None) -> Any:
        request = self._request().request
        inputs = dict(request.parameters) if pseudo_header(self._row, ":endpoint") in _GENERATING else {}
        inputs |= {tensor.name: _value_of(tensor) for tensor in request.inputs}
        return inputs if input_type is None else validate(inputs, input_type)

    def encode(self, result: Any) -> TrussAnswer:
        received = self._request()
        try:
            members = result.model_dump() if isinstance(result, BaseModel) else result
            members = members if isinstance(members, dict) else {OUTPUT: members}
            outputs = [_tensor(str(name), value) for name, value in members.items()]
            response = InferenceResponse(self._model_name, self._model_version, outputs=outputs)
            headers, body = received.encode(response)
        except RowFailure as failure:
            raise Problem(failure.status, SERVER_ERROR, failure.message) from failure
        except (TypeError, ValueError, OverflowError) as error:
            raise Problem(500, SERVER_ERROR, f"The model's result cannot be converted to tensors: {error}") from error
        return TrussAnswer(200, headers, body)

    def encode_chunk(self, chunk: Any) -> Buffer:
        return self.encode(chunk).body

    def gathers(self) -> bool:
        return pseudo_header(self._row, ":endpoint") not in _STREAMING

    def _request(self) -> Received:
        if self._received is None:
            try:
                self._received = receive(self._row)
            except RowFailure as failure:
                raise Problem(failure.status, CLIENT_ERROR, failure.message) from failure
        return self._received


def _value_of(tensor: Tensor) -> Any:
    elements: Sequence[Any] = flat_list(tensor)
    if tensor.datatype == "BYTES":
        elements = [each if isinstance(each, str) else _text_or_bytes(each) for each in elements]
    elif tensor.datatype in FLOATS:  # JSON may have written them as integers, and NaN as null
        elements = [math.nan if each is None else float(each) for each in elements]
    return _nested(elements, tensor.shape)


def _text_or_bytes(element: bytes) -> str | bytes:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return element


def _nested(elements: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return elements in row-major order as lists in lists; a scalar for the shape []."""
    if not shape:
        return elements[0]
    for size in reversed(shape[1:]):
        count = len(elements) // size if size else 0
        elements = [elements[start * size : (start + 1) * size] for start in range(count)]
    return list(elements)


def _tensor(name: str, value: Any) -> Tensor:
    """Return a value as a tensor; a scalar, and JSON of what holds more than numbers or text, has the shape [1]."""
    import numpy as np

    from ts.apis.open_inference.tensors import tensor_of

    if isinstance(value, bytes | bytearray | memoryview):
        return Tensor(name, "BYTES", [1], [bytes(value)])
    if isinstance(value, np.ndarray | np.generic):
        return tensor_of(name, np.atleast_1d(value))
    array = _array(np, plain(value, json_value))
    if array.dtype.kind == "O":
        return Tensor(name, "BYTES", [1], [to_json(value)])
    return tensor_of(name, np.atleast_1d(array))


def _array(numpy: Any, value: Any) -> Any:
    try:
        return numpy.array(value)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"its lists have different lengths: {error}") from error
