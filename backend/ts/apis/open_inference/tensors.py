"""Conversions of a tensor's data: from one form to another, and to numpy and back.

Lists and the raw form are converted with the standard library alone. numpy is imported by the functions that make or
take arrays, when they are called, and for large tensors, where it takes a tenth of the time and memory.
"""

from __future__ import annotations

import functools
import importlib
import math
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ts.apis.open_inference.types import Tensor
from ts.handler_utils.shapes import ShapeError, count_of, shown
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import BOUNDS, DATATYPES, FLOATS, OF_NUMPY, Datatype

if TYPE_CHECKING:
    import numpy as np
_LENGTH = struct.Struct("<I")
_NAN = math.nan
_LITTLE_ENDIAN: Final = sys.byteorder == "little"
#: The number of bytes from which on numpy is worth its import.
LARGE_TENSOR: Final = 64 * 1024


@functools.cache
def installed(name: str) -> ModuleType | None:
    """Return an optional package, None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def flat_list(tensor: Tensor) -> list[Any]:
    """Return the elements in row-major order.

    Elements of BYTES are ``bytes`` from the raw form and from gRPC, ``str`` from JSON; of BF16 they are floats. Raises
    Failure: the raw data do not fit the datatype and shape.
    """
    data = tensor.data
    if isinstance(data, list):
        return data
    if not isinstance(data, bytes | bytearray | memoryview):
        return data.tolist()  # type: ignore[no-any-return]
    if tensor.datatype == "BYTES":
        view = memoryview(data)
        return [bytes(view[start:end]) for start, end in _places_of_bytes(tensor.name, view)]
    code, size = _datatype(tensor).code, _datatype(tensor).size
    raw = memoryview(data).cast("B")
    if len(raw) % size:
        raise RowFailure(400, f"Tensor {tensor.name!r}: {len(raw)} bytes are no whole number of {tensor.datatype}.")
    if tensor.datatype == "BF16":
        return [_widened(value) for value in struct.unpack(f"<{len(raw) // size}H", raw)]
    if code != "e" and _LITTLE_ENDIAN:
        return raw.cast(code).tolist()  # type: ignore[call-overload, no-any-return]
    return list(struct.unpack(f"<{len(raw) // size}{code}", raw))


def flat(data: Any) -> list[Any]:
    """Return the elements of an array, a scalar or nested lists as a flat list."""
    if hasattr(data, "tolist"):
        data = data.tolist()
    if not isinstance(data, list | tuple):
        return [data]
    kinds = set(map(type, data))  # far faster than to look at each
    if not any(issubclass(kind, list | tuple) for kind in kinds):
        return data if isinstance(data, list) else list(data)
    return [each for element in data for each in flat(element)]


def json_numbers(tensor: Tensor) -> list[Any] | np.ndarray[Any, Any]:
    """Return the elements of numbers as `flat_list` does, or many as a flat array, which `orjson` writes faster.

    Raises Failure: the raw data do not fit the datatype and shape.
    """
    data = tensor.data
    if isinstance(data, list):
        return data
    if isinstance(data, bytes | bytearray | memoryview):
        if len(data) < LARGE_TENSOR or not _LITTLE_ENDIAN or installed("numpy") is None:
            return flat_list(tensor)
        data = numpy_of(tensor).reshape(-1)
    # A list has Python's floats: it must not depend on the tensor's size with how many digits they are written.
    return data.astype("float64", copy=False) if data.dtype.kind == "f" else data


def raw_bytes(tensor: Tensor) -> bytes | bytearray | memoryview:
    """Return the data in the raw form, copied if need be. Raises Failure: an element does not fit the datatype."""
    data = tensor.data
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    if not isinstance(data, list):
        return _raw_of_array(tensor, data)
    if tensor.datatype == "BYTES":
        elements = [each.encode() if isinstance(each, str) else bytes(each) for each in data]
        return b"".join([piece for each in elements for piece in (_LENGTH.pack(len(each)), each)])
    datatype = _datatype(tensor)
    values = [_NAN if value is None else value for value in data] if tensor.datatype in FLOATS else data
    try:
        if tensor.datatype == "BF16":
            return struct.pack(f"<{len(values)}H", *[_narrowed(value) for value in values])
        return struct.pack(f"<{len(values)}{datatype.code}", *values)
    except (struct.error, OverflowError, TypeError) as error:
        raise RowFailure(400, f"Tensor {tensor.name!r} holds what is no {tensor.datatype}: {error}") from error


def numpy_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor as an array of its shape, BYTES as ``bytes`` objects, BF16 as float32.

    From the raw form the array has no memory of its own, and is read-only where that is. Raises Failure: the data do
    not fit the datatype and shape.
    """
    import numpy as np

    try:
        if tensor.datatype == "BYTES":
            elements = [each.encode() if isinstance(each, str) else each for each in flat_list(tensor)]
            array = np.empty(len(elements), dtype=object)
            array[:] = elements
        elif isinstance(tensor.data, list | np.ndarray):
            # numpy makes NaN of None where the type is one of floating point, and refuses it elsewhere.
            array = np.array(tensor.data, dtype=_datatype(tensor).numpy)
        elif tensor.datatype == "BF16":
            array = (np.frombuffer(tensor.data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(tensor.data, dtype=np.dtype(_datatype(tensor).numpy).newbyteorder("<"))
        return array.reshape(tensor.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise RowFailure(
            400,
            f"Tensor {tensor.name!r} is no tensor of {tensor.datatype} with the shape {shown(tensor.shape)}: {error}",
        ) from error


def tensor_of(name: str, array: np.ndarray[Any, Any], datatype: str | None = None) -> Tensor:
    """Return an array (numbers, truth values, text, ``bytes``) as a tensor, converted to ``datatype`` if given.

    Raises Failure: the protocol has no datatype for the array, or does not know the datatype, or an integer exceeds it.
    """
    import numpy as np

    shape = list(array.shape)
    own = "BYTES" if array.dtype.kind in "SUO" else OF_NUMPY.get(array.dtype.newbyteorder("=").name)
    wanted = datatype or own
    if wanted is None:
        raise RowFailure(500, f"Output {name!r} is an array of {array.dtype}, for which the protocol has no datatype.")
    if wanted not in DATATYPES:
        raise RowFailure(500, f"Output {name!r} has the datatype {wanted!r}; known are {', '.join(DATATYPES)}.")
    if wanted == "BYTES":
        return Tensor(
            name,
            wanted,
            shape,
            [each if isinstance(each, str | bytes) else str(each) for each in array.ravel().tolist()],
        )
    if wanted == "BF16":
        return Tensor(name, wanted, shape, _bfloat16(np.ascontiguousarray(array, dtype=np.float32)))
    with np.errstate(invalid="ignore"):
        values = np.ascontiguousarray(array, dtype=np.dtype(DATATYPES[wanted].numpy).newbyteorder("<"))
    if wanted != own and wanted in BOUNDS:
        changed = array.reshape(-1)[values.reshape(-1) != array.reshape(-1)]  # of which numpy says nothing
        if changed.size:
            raise RowFailure(500, f"Output {name!r} holds {changed[0]}, which is no {wanted}.")
    return Tensor(name, wanted, shape, values.reshape(-1).view(np.uint8).data if values.size else b"")


def check(tensor: Tensor) -> None:
    """Check the number of elements. Raises Failure: it does not fit the shape, or the datatype is unknown."""
    size, expected = _datatype(tensor).size, checked_count(tensor.name, tensor.shape)
    if size and tensor.is_raw:
        if len(tensor.data) != expected * size:
            raise RowFailure(
                400,
                f"Tensor {tensor.name!r} has {len(tensor.data)} bytes; {tensor.datatype} with the shape "
                f"{shown(tensor.shape)} needs {expected * size}.",
            )
        return
    found = _count_of_data(tensor)
    if found != expected:
        raise RowFailure(
            400, f"Tensor {tensor.name!r} has {found} elements; the shape {shown(tensor.shape)} needs {expected}."
        )


def whole_shape(tensor: Tensor) -> list[int]:
    """Return the tensor's shape with the size that a -1 stands for, as numpy's ``reshape`` reads it.

    Texts in a list keep a shape that says something else than their number. Raises Failure: no size fits the data.
    """
    shape = tensor.shape
    if -1 not in shape:
        return shape
    others = checked_count(tensor.name, [size for size in shape if size != -1])
    found = _count_of_data(tensor)
    if shape.count(-1) > 1 or not others or found % others:
        if tensor.datatype == "BYTES" and not tensor.is_raw:
            return shape
        raise RowFailure(400, f"Tensor {tensor.name!r} has {found} elements, which fit no shape {shown(shape)}.")
    return [found // others if size == -1 else size for size in shape]


def _count_of_data(tensor: Tensor) -> int:
    data, size = tensor.data, _datatype(tensor).size
    if not isinstance(data, bytes | bytearray | memoryview):
        return len(data)
    return len(data) // size if size else sum(1 for _ in _places_of_bytes(tensor.name, memoryview(data)))


def checked_count(name: str, shape: list[int]) -> int:
    """Return how many elements a client's tensor has by its shape. Raises Failure: no tensor has that shape."""
    try:
        return count_of(shape)
    except ShapeError as error:
        raise RowFailure(400, f"Tensor {name!r}: {error}.") from error


def _datatype(tensor: Tensor) -> Datatype:
    found = DATATYPES.get(tensor.datatype)
    if found is None:
        known = ", ".join(DATATYPES)
        raise RowFailure(400, f"Tensor {tensor.name!r} has the datatype {tensor.datatype!r}; known are {known}.")
    return found


def _places_of_bytes(name: str, view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where in the raw form each element of BYTES begins and ends."""
    start, size = 0, len(view)
    while start < size:
        first = start + _LENGTH.size
        end = first + _LENGTH.unpack_from(view, start)[0] if first <= size else first
        if end > size:
            raise RowFailure(
                400, f"Tensor {name!r}: the element of BYTES at byte {start} reaches beyond the {size} bytes there are."
            )
        yield first, end
        start = end


def _widened(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def _narrowed(value: float) -> int:
    """Return the bits of the BF16 that is nearest to ``value``, of two equally near ones the even one."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN must not be rounded to infinity
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _raw_of_array(tensor: Tensor, array: np.ndarray[Any, Any]) -> memoryview:
    """Return an array whose type is wider than the datatype in the raw form."""
    import numpy as np

    try:
        with np.errstate(over="raise"):
            narrow = array.astype(_datatype(tensor).numpy)
    except FloatingPointError as error:
        raise RowFailure(400, f"Tensor {tensor.name!r} holds what is no {tensor.datatype}: {error}") from error
    raw = tensor_of(tensor.name, narrow, tensor.datatype).data
    assert not isinstance(raw, list | np.ndarray)
    return memoryview(raw)


def _bfloat16(array: np.ndarray[Any, Any]) -> memoryview:
    import numpy as np

    bits = array.reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    kept = np.where(np.isnan(array.reshape(-1)), bits >> 16 | 0x40, rounded)
    return kept.astype("<u2").view(np.uint8).data
