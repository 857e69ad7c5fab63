"""Observations of openpi's clients for a TorchServe handler, and its actions for them: msgpack with numpy arrays.

An array is a map with the keys ``__ndarray__``, ``data``, ``dtype`` and ``shape`` (all ``bytes``), a numpy scalar one
with ``__npgeneric__``, ``data`` and ``dtype``. Arrays of objects would need pickle and are refused, in both directions;
so are structured and complex ones, as by openpi.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgpack
import numpy as np

from ts.context import Context
from ts.handler_utils.client_arrays import client_array
from ts.handler_utils.shapes import shown
from ts.jobs.errors import HandlerFailed, RowFailure
from ts.jobs.row import Row, RowReader
from ts.protocol.backed_msgpack import unpack
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow

#: Truth values, numbers, dates and texts, as numpy writes their types.
DTYPE: Final = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16)|[SU][1-9]\d{0,5}|[mM]8(\[\d*[a-zA-Z]{1,2}\])?)")

#: The errors of msgpack that do not say what is wrong.
_WITHOUT_WORDS: Final[Mapping[type[Exception], str]] = {
    msgpack.FormatError: "the bytes are no msgpack",
    msgpack.StackError: "maps and lists are nested too deeply",
}


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads rows for any handler: an observation says all of itself."""
    return read_openpi_row


def read_openpi_row(wire_row: InferRow) -> Row:
    """Return the row as the handler sees it. Raises Failure: the body is no observation."""
    try:
        observation = unpack(wire_row.body, object_hook=_value_of)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RowFailure(400, f"No observation of openpi: {why_unreadable(error)}") from error
    if not isinstance(observation, dict):
        raise RowFailure(400, f"An observation is a map, and this is a value of type {type(observation).__name__}.")
    row = Row(wire_row.job_id, {"body": observation}, wire_row.headers)
    row.encode = _encode
    return row


def why_unreadable(error: Exception) -> str:
    """Return why bytes cannot be read as msgpack."""
    return str(error) or _WITHOUT_WORDS.get(type(error), type(error).__name__)


def _value_of(given: dict[Any, Any]) -> Any:
    """Return the array or the scalar that a map stands for, or the map itself. Raises ValueError."""
    if b"__ndarray__" in given:
        dtype, data, shape = _dtype(given), given.get(b"data"), given.get(b"shape")
        if not isinstance(data, bytes):
            raise ValueError("an array has the bytes of its elements as data")
        array = client_array(data, dtype, shape)
        if array.nbytes != len(data):
            raise ValueError(f"an array of {dtype} with the shape {shown(array.shape)} has not {len(data)} bytes")
        return array
    if b"__npgeneric__" in given:
        data = given.get(b"data")
        if not isinstance(data, bool | int | float | str | bytes):
            raise ValueError("the data of a scalar is a truth value, a number, or a text")
        try:
            return _dtype(given).type(data)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"a scalar's data does not fit its type: {error}") from error
    return given


def _dtype(given: Mapping[Any, Any]) -> np.dtype[Any]:
    """Return the type of an array's elements. Raises ValueError: openpi has no such arrays."""
    name = given.get(b"dtype")
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(
            f"arrays of {str(name)[:40]!a} are not taken: numbers, truth values, dates and texts are, objects never"
        )
    return np.dtype(name)


def _encode(row: Row, value: Any, more: bool) -> Buffer:
    """Return the body for a result. Raises Failure: the handler chose an error's status, or msgpack cannot write it."""
    status = row.get_response_status_code()
    if status is not None and status >= 400:
        raise RowFailure(status, value if isinstance(value, str) else str(value))
    if not isinstance(value, dict):
        raise HandlerFailed(f"A policy answers with a dict, and this one has returned a {type(value).__name__}.")
    try:
        return bytes(msgpack.packb(value, default=_plain))
    except (TypeError, ValueError, OverflowError) as error:
        raise HandlerFailed(f"The answer of the policy cannot be written: {error}") from error


def _plain(value: Any) -> Any:
    """Return the map that stands for an array or a scalar. Raises TypeError: nothing stands for the value."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from ts.jobs.device_copies import to_numpy

        value = to_numpy(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"no form for a value of type {type(value).__name__}")
    if not DTYPE.fullmatch(value.dtype.str):
        raise TypeError(f"no form for arrays of {value.dtype}")
    if isinstance(value, np.ndarray):
        data = {b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__ndarray__": True, **data}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
