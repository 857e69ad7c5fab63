"""What a TorchServe handler returned for a row, as the output tensors of an Open Inference response.

An array (numpy's or torch's) is a tensor of its type and shape. Text and ``bytes`` are one element of BYTES, a list of
them a tensor of BYTES. Numbers, and lists of numbers, are the smallest of INT64, FP64 and BOOL that holds them. Several
arrays in a list, or in a dict by name, are several outputs. Anything else is one element of BYTES with its JSON.

Outputs are named as the model has declared them, else as the client asked for them, else as the inputs at their places,
else ``output-0`` and so on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ts.open_inference.datatypes import DATATYPES, FLOATS
from ts.open_inference.tensors import tensor_of
from ts.open_inference.types import InferenceRequest, Tensor
from ts.runtimes.errors import Failure, HandlerFailed
from ts.torch_handler.request_envelope.tensors import write_tensor
from ts.utils.util import PredictionException

Declared = Sequence[Mapping[str, Any]]


def outputs_of(value: Any, request: InferenceRequest, declared: Declared) -> list[Tensor]:
    """Return the outputs for a result.

    Raises:
        Failure: A value is nothing of the datatype that was declared for it, or nothing that can be sent.
    """
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
    """Whether the values of a dict are outputs by name, and not the dict one value itself."""
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
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value, datatype = value.float(), datatype or "BF16"
        value = value.numpy()
    return tensor_of(name, value if value.ndim else value.reshape(1), datatype)


def _converted(tensor: Tensor, datatype: str) -> Tensor:
    """Return a tensor of Python's numbers with the datatype that was declared for it."""
    is_number = tensor.datatype in ("INT64", "BOOL") or (tensor.datatype == "FP64" and datatype in FLOATS)
    if datatype == "BYTES" or datatype not in DATATYPES or not (is_number or tensor.datatype == "FP32"):
        raise Failure(
            500, f"Output {tensor.name!r} is declared as {datatype}, but the handler returned {tensor.datatype}."
        )
    return Tensor(tensor.name, datatype, tensor.shape, tensor.data)
