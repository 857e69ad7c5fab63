"""Observations of openpi's clients for a TorchServe handler, and its actions for them: msgpack with numpy arrays.

An array is a map with the keys ``__ndarray__``, ``data``, ``dtype`` and ``shape`` (all ``bytes``), a numpy scalar one
with ``__npgeneric__``, ``data`` and ``dtype``. Arrays of objects would need pickle and are refused, in both directions;
so are structured and complex ones, as by openpi.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ts.apis.openpi.policy_msgpack import array_of, check_observation, dtype_of, packed, plain_array, read_body
from ts.context import Context
from ts.jobs.row import Row, RowReader
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads rows for any handler: an observation says all of itself."""
    return read_openpi_row


def read_openpi_row(wire_row: InferRow) -> Row:
    """Return the row as the handler sees it. Raises Failure: the body is no observation."""
    observation = read_body(wire_row.body, "openpi", _value_of)
    check_observation(observation)
    row = Row(wire_row.job_id, {"body": observation}, wire_row.headers)
    row.encode = _encode
    return row


def _value_of(given: dict[Any, Any]) -> Any:
    """Return the array or the scalar that a map stands for, or the map itself. Raises ValueError."""
    if b"__ndarray__" in given:
        dtype, data = dtype_of(given.get(b"dtype")), given.get(b"data")
        if not isinstance(data, bytes):
            raise ValueError("an array has the bytes of its elements as data")
        return array_of(data, dtype, given.get(b"shape"))
    if b"__npgeneric__" in given:
        data = given.get(b"data")
        if not isinstance(data, bool | int | float | str | bytes):
            raise ValueError("the data of a scalar is a truth value, a number, or a text")
        try:
            return dtype_of(given.get(b"dtype")).type(data)
        except (TypeError, OverflowError) as error:
            raise ValueError(f"a scalar's data does not fit its type: {error}") from error
    return given


def _encode(row: Row, value: Any, more: bool) -> Buffer:
    """Return the body for a result. Raises Failure: the handler chose an error's status, or msgpack cannot write it."""
    return packed(row, value, value, _plain)


def _plain(value: Any) -> Any:
    """Return the map that stands for an array or a scalar. Raises TypeError: nothing stands for the value."""
    value = plain_array(value)
    if isinstance(value, np.ndarray):
        data = {b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        return {b"__ndarray__": True, **data}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
