"""Lets the real MLServer's numpy codec take and give blocks of memory, as ours does, in place of lists.

What it decodes and encodes is the same. Where a version of MLServer has other insides, its codec works as it always
has, and reads the list.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from ts.open_inference.unread import Unread

_MODULE: Final = "mlserver.codecs.numpy"
_DECODE, _ENCODE = "_to_ndarray", "_encode_data"


def unread_data_of(tensor_data: Any) -> Any:
    """Return a subclass of MLServer's ``TensorData`` that has what `Unread` adds."""
    return type("TensorData", (Unread, tensor_data), {"__module__": tensor_data.__module__, "__annotations__": {}})


def take_blocks(unread_data: Any) -> None:
    """Let the codec take such data, and give them."""
    codec: Any = importlib.import_module(_MODULE)
    decode, encode = getattr(codec, _DECODE, None), getattr(codec, _ENCODE, None)
    if decode is None or encode is None:
        return

    def to_ndarray(tensor: Any) -> Any:
        array = tensor.data.array if isinstance(tensor.data, unread_data) else None
        # models write to what they get
        return decode(tensor) if array is None or array.dtype != codec.to_dtype(tensor) else array.copy()

    def encode_data(array: Any, datatype: Any) -> Any:
        return unread_data.of_array(array.copy()) if array.dtype.kind in "biuf" else encode(array, datatype)

    setattr(codec, _DECODE, to_ndarray)
    setattr(codec, _ENCODE, encode_data)
