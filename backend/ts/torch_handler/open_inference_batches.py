"""Open Inference requests for built-in handlers: a tensor's first dimension is the batch, and each entry a row.

Clients of KServe and Triton send a batch even for one row. A handler's hooks take rows, as from any other request; its
results become one tensor again, of the type in which the numbers came where that is one of floating point.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ts.jobs.json_values import json_text, plain
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.built_in_rows import only_rows

_BUILT_IN: Final = "ts.torch_handler."
#: The types of floating point that answers may have besides that of Python's numbers, by their names in numpy.
_FLOATS: Final = {"FP16": "float16", "BF16": "float32", "FP32": "float32"}
_WIDEST: Final = "float64"
#: With this status and above the result of a row is an error.
_FIRST_ERROR: Final = 400


class _Share(NamedTuple):
    """The rows of one request, and what makes its result of theirs."""

    rows: list[Any]
    joined: Callable[[list[Any]], Any]


def in_rows(handler: Any, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``handle`` so that it gets rows; as it is where a handler reads requests in its own way."""
    if not isinstance(handler, BaseHandler) or not type(handler).preprocess.__module__.startswith(_BUILT_IN):
        return handle
    return partial(_handle, handle, getattr(handler, "row_dimensions", None))


def _handle(handle: Callable[[Any, Any], Any], dimensions: int | None, data: Any, context: Any) -> Any:
    processors: Sequence[Any] = context.request_processor if data else ()
    if not any(each.open_inference is not None for each in processors):
        return handle(data, context)
    dimensions = _declared(context.model_yaml_config) or dimensions
    shares = [_share(row, each.open_inference, dimensions) for row, each in zip(data, processors, strict=True)]
    owners = [index for index, share in enumerate(shares) for _ in share.rows]
    with only_rows(context, owners):
        results = handle([row for share in shares for row in share.rows], context)
    if not isinstance(results, list) or len(results) != len(owners):
        return results
    answers, given = [], iter(results)
    for share, processor in zip(shares, processors, strict=True):
        own = [next(given) for _ in share.rows]
        status = processor.get_response_status_code() or 0
        answers.append(_error_among(own) if status >= _FIRST_ERROR else share.joined(own))
    return answers


def _declared(config: Mapping[str, Any] | None) -> int | None:
    """Return how many dimensions a row has by the model's declared input; None if it declares not one of numbers."""
    inputs: Sequence[Any] = (config or {}).get("inputs") or []
    if len(inputs) != 1 or inputs[0].get("datatype") == "BYTES":
        return None
    shape: Sequence[int] = inputs[0].get("shape") or []
    return len(shape) - (len(shape) > 1 and shape[0] in (-1, 1)) or None


def _share(row: Any, request: Any, dimensions: int | None) -> _Share:
    """Return the rows of a request: of a batch one for each entry; else the request itself, as of other protocols.

    Without knowing a row's dimensions, all tensors of two and more are batches.
    """
    if request is None or len(request.inputs) != 1:
        return _Share([row], _only)
    (tensor,) = request.inputs
    value = row[tensor.name]
    if tensor.datatype == "BYTES":
        if not isinstance(value, list) or not value:
            return _Share([row], _only)
        return _Share([{tensor.name: each, "body": each} for each in value], partial(_joined, _WIDEST))
    floats = _FLOATS.get(tensor.datatype, _WIDEST)
    is_batch = value.ndim > (1 if dimensions is None or dimensions > value.ndim else dimensions)
    if not is_batch or not len(value):
        return _Share([row], partial(_alone, floats))
    return _Share([{tensor.name: each, "body": each} for each in value], partial(_joined, floats))


def _only(results: list[Any]) -> Any:
    return results[0]


def _alone(floats: str, results: list[Any]) -> Any:
    """Return the result of a request that is one row: numbers as an array."""
    array = _array(results, floats)
    return results[0] if array is None else array[0]


def _joined(floats: str, results: list[Any]) -> Any:
    """Return the results of a batch: numbers as one array, arrays by name as one for each, all else as texts."""
    array = _array(results, floats)
    if array is not None:
        return array
    if all(isinstance(each, dict) and each and all(map(_is_array, each.values())) for each in results):
        by_name = {name: _array([each.get(name) for each in results], floats) for name in results[0]}
        if all(each is not None for each in by_name.values()):
            return by_name
    return [each if isinstance(each, str | bytes) else json_text(each) for each in results]


def _array(results: list[Any], floats: str) -> Any:
    """Return numbers and arrays of one shape as an array; None if they are none."""
    import numpy as np  # which whatever made the request's arrays has imported

    if not all(isinstance(each, int | float | list) or _is_array(each) for each in results):
        return None
    try:
        array = np.array([each if isinstance(each, np.ndarray) else plain(each) for each in results])
    except (TypeError, ValueError):  # lists of several shapes
        return None
    if array.dtype.kind == "O":  # NaN has become null
        try:
            array = np.array(array, dtype=_WIDEST)
        except (TypeError, ValueError):
            return None
    if array.dtype.kind not in "biuf":
        return None
    return array.astype(floats) if array.dtype == _WIDEST else array


def _is_array(value: Any) -> bool:
    return hasattr(value, "tolist")


def _error_among(results: list[Any]) -> Any:
    """Return what a handler says of the first row that it refuses."""
    return next((each for each in results if isinstance(each, dict) and "code" in each), results[0])
