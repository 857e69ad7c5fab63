"""Tensors of the v2 protocol as JSON: what a handler gets for one, and how a result becomes one.

numpy is imported when the first numeric tensor comes; results may be numpy arrays or torch tensors without either being
imported for it.
"""

import sys
from typing import Any, Final

from ts.handler_utils.shapes import count_of, shown
from ts.jobs.json_values import json_text, plain
from ts.protocol.datatypes import DATATYPES, OF_NUMPY
from ts.utils.util import PredictionException

_SCALARS: Final = {bool: "BOOL", int: "INT64", float: "FP64"}


def read_tensor(tensor: Any) -> dict[str, Any]:
    """Return an input tensor as a handler gets it: with the ``data`` that Python code expects.

    Numbers and truth values: lists nested as the tensor's shape says. BYTES: the element, or the list of them if there
    are several. Raises ValueError: the value is not a tensor.
    """
    if not isinstance(tensor, dict):
        raise ValueError(f"An input must be a JSON object, it is of type {type(tensor).__name__}.")
    name = tensor.get("name", "")
    datatype, data, shape = tensor.get("datatype"), tensor.get("data"), tensor.get("shape")
    numpy = sys.modules.get("numpy")
    if not isinstance(data, list) and (numpy is None or not isinstance(data, numpy.ndarray)):
        raise ValueError(f'Input {name!r} must hold the list "data".')
    if datatype == "BYTES":
        return {**tensor, "data": data[0] if len(data) == 1 else data}
    if datatype not in OF_NUMPY.values():
        known = ", ".join([*OF_NUMPY.values(), "BYTES"])
        raise ValueError(f"Input {name!r} has the datatype {datatype!r}; known are {known}.")
    import numpy as np

    try:
        array = np.array(data, dtype=DATATYPES[str(datatype)].numpy)
        if shape is not None:
            array = array.reshape(shape)
        count_of(array.shape)  # numpy makes arrays of any number of empty rows
        return {**tensor, "data": array.tolist()}
    except (TypeError, ValueError, OverflowError) as error:
        form = shown(shape) if isinstance(shape, list) else str(shape)
        reason = f"no tensor of {datatype} with the shape {form[:100]}: {error}"
        raise ValueError(f"Input {name!r} is {reason}") from error


def write_tensor(name: str, result: Any) -> dict[str, Any]:
    """Return a handler's result for one row as an output tensor.

    Arrays and torch tensors keep their type and shape (half precision without a type of the protocol becomes FP32).
    Numbers, and lists of numbers or lists, become the smallest of INT64, FP64 and BOOL tensors that holds them. Text is
    BYTES, anything else BYTES with its JSON. Raises PredictionException: JSON cannot represent the result.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(result, torch.Tensor):
        from ts.jobs.device_copies import to_numpy

        result = to_numpy(result)
    # torch's `numpy()` imports numpy.
    numpy = numpy or sys.modules.get("numpy")
    if numpy is not None and isinstance(result, numpy.ndarray | numpy.generic):
        datatype = OF_NUMPY.get(str(result.dtype))
        if datatype is not None:
            return _tensor(name, datatype, list(result.shape) or [1], result.flatten().tolist())
        result = result.tolist()
    values, shape = _flattened(result)
    if any(hasattr(each, "tolist") for each in values):  # numbers of numpy or torch, or lists of arrays
        result = plain(result)
        values, shape = _flattened(result)
    datatype = _common_type(values)
    if datatype is not None:
        return _tensor(name, datatype, shape, values)
    if isinstance(result, list) and result and all(isinstance(each, str) for each in result):
        return _tensor(name, "BYTES", [len(result)], result)
    return _tensor(name, "BYTES", [1], [_text(result)])


def _tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "data": data, "shape": shape}


def _flattened(value: Any) -> tuple[list[Any], list[int]]:
    """Return the scalars of a value in row-major order and its shape; a list that is ragged counts as one scalar."""
    if not isinstance(value, list | tuple):
        return [value], [1]
    if not value:
        return [], [0]
    if not isinstance(value[0], list | tuple):
        return list(value), [len(value)]
    parts = [_flattened(each) for each in value]
    shape = parts[0][1]
    if any(not isinstance(each, list | tuple) or other != shape for each, (_, other) in zip(value, parts, strict=True)):
        return [value], [1]
    return [scalar for scalars, _ in parts for scalar in scalars], [len(value), *shape]


def _common_type(values: list[Any]) -> str | None:
    """Return the datatype of numbers or booleans; None for other values."""
    kinds = {type(value) for value in values}
    if not kinds:
        return "FP32"
    if not kinds <= _SCALARS.keys() or (bool in kinds and len(kinds) > 1):
        return None
    if int in kinds and not all(-(2**63) <= value < 2**63 for value in values if type(value) is int):
        return None
    return _SCALARS[float if float in kinds else kinds.pop()]


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        if isinstance(result, bytes | bytearray):
            return result.decode()
        return json_text(result)
    except (TypeError, ValueError) as error:
        raise PredictionException("Unsupported model output data type.", 503) from error
