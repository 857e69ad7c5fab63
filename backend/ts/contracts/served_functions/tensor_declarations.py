"""The tensor of the Open Inference Protocol that a parameter or a result of an annotated type is."""

import sys
import types
import typing
from typing import Any, Final

from ts.contracts.served_functions.value_types import dtype_of, value_type_of

#: ``bool`` first: it is an ``int``.
_DATATYPES: Final = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES", bytes: "BYTES", bytearray: "BYTES"}
_OF_NUMPY: Final = {"b": "BOOL", "i": "INT", "u": "UINT", "f": "FP"}
_ANY_SIZE: Final = -1


def tensor_of(name: str, annotation: Any, *, of_result: bool = False) -> dict[str, Any] | None:
    """Return the name, datatype and shape of a tensor; None for a type that is none.

    An array without a dtype is no tensor as a result, since it may be of any. Where it is a parameter the server
    converts what comes, and FP32 stands for that.
    """
    kind, dimensions = _without_none(annotation), 0
    while typing.get_origin(kind) is list or kind is list:
        kind, dimensions = next(iter(typing.get_args(kind)), Any), dimensions + 1
    datatype = _DATATYPES.get(kind) if isinstance(kind, type) else None
    own = value_type_of(kind)
    if own is not None and own.is_file:
        datatype = "BYTES"
    elif own is not None and not dimensions:
        datatype, dimensions = _datatype_of_array(kind, of_result=of_result), 1
    if datatype is None:
        return None
    return {"name": name, "datatype": datatype, "shape": [_ANY_SIZE] * dimensions or [1]}


def _without_none(annotation: Any) -> Any:
    """Return what is left of an optional type."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    left = [each for each in typing.get_args(annotation) if each is not type(None)]
    return left[0] if len(left) == 1 else annotation


def _datatype_of_array(kind: Any, *, of_result: bool) -> str | None:
    dtype = dtype_of(kind) if sys.modules.get("numpy") is not None else None
    if dtype is None:
        return None if of_result else "FP32"
    letter = _OF_NUMPY.get(dtype.kind)
    return letter if letter in (None, "BOOL") else f"{letter}{8 * dtype.itemsize}"
