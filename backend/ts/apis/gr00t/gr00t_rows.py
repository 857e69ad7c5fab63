"""Observations of GR00T's clients for a TorchServe handler, and its actions for them: msgpack with arrays of numpy's.

An array is a map with the keys ``__ndarray_class__`` and ``as_npy``, whose bytes are a file of numpy's (``.npy``). Such
a file can hold a pickle, if its elements are objects: those are refused, in both directions, as for openpi.

A body is the ``data`` of a request: ``{"observation": …, "options": …}``, whose answer is ``[actions, info]``; or, from
clients of GR00T N1 and N1.5, the observation itself, whose answer is the actions.
"""

import io
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy

from ts.apis.openpi.policy_msgpack import array_of, check_observation, dtype_of, packed, plain_array, read_body
from ts.context import Context
from ts.jobs.row import Row, RowReader
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow

_CLASS: Final = "__ndarray_class__"
_FILE: Final = "as_npy"
_OBSERVATION: Final = "observation"
_OPTIONS: Final = "options"
#: The only version of numpy's files whose header is long enough for any array here.
_VERSION: Final = (1, 0)
#: What such a file begins with: the type, the order and the shape of an array. `numpy.load` parses it as Python, which
#: some headers keep from ending well. The two bytes of its length say no more than its own end, a line feed.
_HEAD: Final = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([^'\n]{1,30})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,18}(?:, \d{1,18}){0,63},?)?)\), \} *\n",
    re.DOTALL,
)


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads rows for any handler: an observation says all of itself."""
    return read_gr00t_row


def read_gr00t_row(wire_row: InferRow) -> Row:
    """Return the row as the handler sees it. Raises Failure: the body is no observation."""
    data = read_body(wire_row.body, "GR00T", _value_of)
    has_options = isinstance(data, dict) and _OBSERVATION in data and data.keys() <= {_OBSERVATION, _OPTIONS}
    observation = data[_OBSERVATION] if has_options else data
    check_observation(observation)
    fields = {"body": observation}
    if has_options and data.get(_OPTIONS) is not None:
        fields[_OPTIONS] = data[_OPTIONS]
    row = Row(wire_row.job_id, fields, wire_row.headers)
    row.encode = _encode_with_info if has_options else _encode
    return row


def _value_of(given: dict[Any, Any]) -> Any:
    """Return the array that a map stands for, or the map itself. Raises ValueError."""
    if _CLASS not in given:
        return given
    file = given.get(_FILE)
    if not isinstance(file, bytes):
        raise ValueError(f"an array has the bytes of a file of numpy's as {_FILE}")
    head = _HEAD.match(file)
    if head is None:
        raise ValueError("an array is a file of numpy's, version 1.0, of numbers, truth values, dates or texts")
    name, order, sizes = (each.decode() for each in head.groups())
    dtype, data = dtype_of(name), memoryview(file)[head.end() :]
    shape, is_transposed = [int(size) for size in sizes.split(",") if size.strip()], order == "True"
    array = array_of(data, dtype, shape[::-1] if is_transposed else shape)
    return array.T if is_transposed else array


def _encode_with_info(row: Row, value: Any, more: bool) -> Buffer:
    """Return the body for a result with its info: a pair if the handler returns one, else the actions and no info."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, dict) for each in value)
    return packed(row, value[0] if pair else value, [*value] if pair else [value, {}], _plain)


def _encode(row: Row, value: Any, more: bool) -> Buffer:
    """Return the body for a result, which is the actions."""
    return packed(row, value, value, _plain)


def _plain(value: Any) -> Any:
    """Return what stands for an array, a tensor or a number of numpy's. Raises TypeError: nothing stands for it."""
    value = plain_array(value)
    if isinstance(value, np.generic):
        return value.item()
    file = io.BytesIO()
    npy.write_array(file, value, version=_VERSION, allow_pickle=False)
    return {_CLASS: True, _FILE: file.getvalue()}
