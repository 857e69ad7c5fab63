"""Reads bodies as arrays, under the toolkit's names. NPY files with pickled objects are refused.

Scripts with functions of their own do without numpy, so it is imported when an array is read.
"""

import importlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, Final

from ts.contracts.sagemaker.toolkit import content_types
from ts.contracts.sagemaker.toolkit.errors import UnsupportedFormatError

#: Of a sparse matrix when it is decompressed, and when it is made dense (bytes). A body of 1 KB can announce terabytes.
_LARGEST_MATRIX: Final = 1 << 28
#: A text with more columns takes more than ten seconds unless all fields are numbers.
_MOST_COLUMNS: Final = 65_536
#: What texts of numbers that are not whole have.
_NOT_WHOLE: Final = frozenset(".eEnN")


def decode(obj: Any, content_type: str | None) -> Any:
    """Return the array in a body: text for JSON and CSV, else bytes.

    JSON has the type that numpy finds, CSV a column per value, NPY its own type, NPZ a sparse matrix of scipy's.

    Raises UnsupportedFormatError: there is no decoder for the content type; ValueError: the body is malformed.
    """
    decode_as = _decoder_map.get(content_type or "")
    if decode_as is None:
        raise UnsupportedFormatError(content_type)
    return decode_as(obj)


def _json_to_numpy(text: str, dtype: Any = None) -> Any:
    import numpy as np

    try:
        return np.array(json.loads(text), dtype=dtype)
    except RecursionError as error:
        raise ValueError(f"the JSON is nested too deeply: {error}") from error


def _csv_to_numpy(text: str, dtype: Any = None) -> Any:
    """Return the rows of a CSV text; columns of whole and of other numbers together become floats."""
    import numpy as np

    numbers = _only_numbers(text) if dtype is None else None
    if numbers is not None:
        return numbers
    columns = _columns(text)
    if columns > _MOST_COLUMNS:
        raise ValueError(f"a CSV text with {columns} columns must have a number in each field")
    array = np.genfromtxt(io.StringIO(text), dtype=dtype, delimiter=",", encoding="utf-8")
    fields = array.dtype.fields
    if fields and all(each[0].kind in "iuf" for each in fields.values()):
        return np.array(array.tolist(), dtype=np.float64)
    return array


def _columns(text: str) -> int:
    """Return how many columns a CSV text has. Raises ValueError: a row is longer or shorter than the first one."""
    columns = 0
    for number, line in enumerate(io.StringIO(text), 1):
        row = line.partition("#")[0].strip()
        fields = row.count(",") + 1
        columns = columns or (fields if row else 0)
        if row and fields != columns:  # numpy would return a line of text for each of these rows
            raise ValueError(f"line {number} of the CSV text has {fields} fields; the first row has {columns}")
    return columns


def _only_numbers(text: str) -> Any:
    """Return the rows of a CSV text with a number in each field, None for other texts.

    The result is that of `numpy.genfromtxt`, which takes a thousand times as long where rows are long.
    """
    import numpy as np

    if not text.strip():
        return None
    is_whole = _NOT_WHOLE.isdisjoint(text)
    try:
        array = np.loadtxt(io.StringIO(text), np.int64 if is_whole else np.float64, delimiter=",")
    except (ValueError, OverflowError):
        return None
    return array if array.size else None


def _npy_to_numpy(body: Any) -> Any:
    from ts.handler_utils.client_arrays import array_in_file

    return array_in_file(body)


def _npz_to_sparse(body: Any) -> Any:
    """Return the sparse matrix in a file; it is no larger than `_LARGEST_MATRIX` bytes, also when it is made dense."""
    from ts.handler_utils.client_arrays import FILE_ERRORS

    sparse: Any = importlib.import_module("scipy.sparse")  # an optional package
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as file:
            _check_matrix("the file", sum(each.file_size for each in file.infolist()))
        matrix = sparse.load_npz(io.BytesIO(body))
    except (zipfile.BadZipFile, KeyError, *FILE_ERRORS) as error:
        # As for an array: a MemoryError is about what the file announces.
        raise ValueError(f"the file is no sparse matrix (.npz): {type(error).__name__}: {error}") from None
    _check_matrix(f"a matrix of the shape {matrix.shape}", math.prod(matrix.shape) * matrix.dtype.itemsize)
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)  # scipy writes to where its indices point
    return matrix


def _check_matrix(what: str, size: int) -> None:
    if size > _LARGEST_MATRIX:
        raise ValueError(f"{what} needs {size} bytes; it may need {_LARGEST_MATRIX}")


_decoder_map: Final[Mapping[str, Callable[[Any], Any]]] = {
    content_types.NPY: _npy_to_numpy,
    content_types.CSV: _csv_to_numpy,
    content_types.JSON: _json_to_numpy,
    content_types.NPZ: _npz_to_sparse,
}
