"""Arrays whose bytes, type and shape come from a client."""

import io
import tokenize
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ts.handler_utils.shapes import MAX_EMPTY, ShapeError, count_of, shown

_LAST_CODE_POINT: Final = 0x10FFFF
#: What numpy raises beside ValueError for a damaged file; MemoryError if the file announces more than memory can hold.
FILE_ERRORS: Final = (EOFError, MemoryError, RecursionError, OverflowError, TypeError, SyntaxError, tokenize.TokenError)


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
    _check_size(dtype, count, shape)
    size = len(memoryview(data).cast("B"))
    if count * dtype.itemsize > size:
        raise ValueError(f"an array of {str(dtype)[:40]} with the shape {shown(shape)} needs more than {size} bytes")
    array: np.ndarray[Any, Any] = np.ndarray(buffer=data, dtype=dtype, shape=tuple(shape))
    _check_texts(array)
    return array


def array_in_file(data: bytes | bytearray) -> np.ndarray[Any, Any]:
    """Return the array in a file as `numpy.save` writes it.

    Raises ValueError: the file is damaged, announces more than it has, or has Python objects.
    """
    try:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except FILE_ERRORS as error:
        # Not "from error": a MemoryError as its cause would be taken for memory that has run out.
        raise ValueError(f"the file is no array in numpy's format (.npy): {type(error).__name__}: {error}") from None
    _check_size(array.dtype, count_of(array.shape), array.shape)
    _check_texts(array)
    return array


def _check_size(dtype: np.dtype[Any], count: int, shape: Sequence[int]) -> None:
    if not dtype.itemsize and count > MAX_EMPTY:
        raise ShapeError(f"the shape {shown(shape)} has more than {MAX_EMPTY} elements that hold nothing")


def _check_texts(array: np.ndarray[Any, Any]) -> None:
    for name in array.dtype.names or ():
        _check_texts(array[name])
    if array.dtype.kind == "U" and array.nbytes:
        code_points = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if code_points.max() > _LAST_CODE_POINT:
            raise ValueError(f"an array of texts holds the character {code_points.max():#x}, which does not exist")
