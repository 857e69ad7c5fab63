"""The elements of tensors of the Open Inference Protocol and of openpi's arrays, read from their bytes without numpy.

What cannot be read stays as it is, to be compared byte by byte.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from ts.protocol.datatypes import DATATYPES

_LENGTH: Final = struct.Struct("<I")
#: `struct`'s letters by what numpy writes after the order of bytes.
_CODES: Final = {
    **{"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q"},
    **{"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f2": "e", "f4": "f", "f8": "d"},
}


def tensor_elements(datatype: str, raw: bytes) -> Any:
    """Return the elements of a tensor of the Open Inference Protocol in the raw form."""
    try:
        if datatype == "BYTES":
            return list(_texts(raw))
        if datatype == "BF16":  # the upper half of FP32
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[::2], raw[1::2]
            datatype, raw = "FP32", bytes(wide)
        return _unpacked("<", DATATYPES[datatype].code, raw)
    except (struct.error, KeyError, ValueError):
        return raw


def array_elements(dtype: str, raw: bytes) -> Any:
    """Return the elements of an array of a numpy type, such as ``<f4``."""
    try:
        return _unpacked(">" if dtype[:1] == ">" else "<", _CODES[dtype.lstrip("<>|=")], raw)
    except (struct.error, KeyError):
        return raw


def _unpacked(order: str, code: str, raw: bytes) -> list[Any]:
    return list(struct.unpack(f"{order}{len(raw) // struct.calcsize(f'{order}{code}')}{code}", raw))


def _texts(raw: bytes) -> Iterator[bytes]:
    """Yield the texts, each of which is after its length. Raises struct.error, ValueError: it is no such tensor."""
    at = 0
    while at < len(raw):
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        if at > len(raw):
            raise ValueError("a text ends behind the tensor")
        yield raw[at - length : at]
