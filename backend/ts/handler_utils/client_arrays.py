"""Arrays whose bytes, type and shape come from a client."""

from typing import Any, Final

import numpy as np

from ts.handler_utils.shapes import MAX_EMPTY, ShapeError, count_of, shown

_LAST_CODE_POINT: Final = 0x10FFFF


def client_array(data: Any, dtype: np.dtype[Any], shape: Any) -> np.ndarray[Any, Any]:
    """Return bytes as an array that reads them where they are.

    Args:
        data: The bytes; there may be more of them than the array has.
        dtype: The type of the elements, not of Python objects.
        shape: The shape, as a list of integers.

    Raises:
        ValueError: The shape is not a list of sizes, or the array needs more bytes than there are, or holds a text that
            is none: Python would fail with SystemError when it reads that.
    """
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("the shape of an array is a list of sizes")
    count = count_of(shape)
    if not dtype.itemsize and count > MAX_EMPTY:
        raise ShapeError(f"the shape {shown(shape)} has more than {MAX_EMPTY} elements that hold nothing")
    size = len(memoryview(data).cast("B"))
    if count * dtype.itemsize > size:
        raise ValueError(f"an array of {str(dtype)[:40]} with the shape {shown(shape)} needs more than {size} bytes")
    array: np.ndarray[Any, Any] = np.ndarray(buffer=data, dtype=dtype, shape=tuple(shape))
    _check_texts(array)
    return array


def _check_texts(array: np.ndarray[Any, Any]) -> None:
    for name in array.dtype.names or ():
        _check_texts(array[name])
    if array.dtype.kind == "U" and array.nbytes:
        code_points = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if code_points.max() > _LAST_CODE_POINT:
            raise ValueError(f"an array of texts holds the character {code_points.max():#x}, which does not exist")
