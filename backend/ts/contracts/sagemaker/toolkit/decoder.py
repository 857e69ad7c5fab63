"""Reads bodies as arrays, under the toolkit's names. NPY files with pickled objects are refused."""

import importlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from ts.contracts.sagemaker.toolkit import content_types
from ts.contracts.sagemaker.toolkit.errors import UnsupportedFormatError


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
    return np.array(json.loads(text), dtype=dtype)


def _csv_to_numpy(text: str, dtype: Any = None) -> Any:
    """Return the rows of a CSV text; columns of whole and of other numbers together become floats."""
    array = np.genfromtxt(io.StringIO(text), dtype=dtype, delimiter=",", encoding="utf-8")
    fields = array.dtype.fields
    if fields and all(each[0].kind in "iuf" for each in fields.values()):
        return np.array(array.tolist(), dtype=np.float64)
    return array


def _npy_to_numpy(body: Any) -> Any:
    return np.load(io.BytesIO(body), allow_pickle=False)


def _npz_to_sparse(body: Any) -> Any:
    sparse: Any = importlib.import_module("scipy.sparse")  # an optional package
    return sparse.load_npz(io.BytesIO(body))


_decoder_map: Final[Mapping[str, Callable[[Any], Any]]] = {
    content_types.NPY: _npy_to_numpy,
    content_types.CSV: _csv_to_numpy,
    content_types.JSON: _json_to_numpy,
    content_types.NPZ: _npz_to_sparse,
}
