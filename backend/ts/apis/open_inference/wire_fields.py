"""The fields of a serialized protobuf message, without reading their content.

Protobuf copies a message when it parses it; tensors are large and need not be copied.
"""

from typing import Final, NamedTuple

#: From this size on, looking for the fields is cheaper than copying them.
LARGE_MESSAGE: Final = 32 * 1024

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT: Final = 10  # bytes


class WireField(NamedTuple):
    """One field: its number, and where in the message it begins, its value begins, and it ends."""

    number: int
    start: int
    value: int
    end: int


def fields_of(message: bytes | memoryview, most: int | None = None) -> list[WireField]:
    """Return a message's fields in order. Raises ValueError: it is no message, or has more than ``most`` fields."""
    fields: list[WireField] = []
    at, size = 0, len(message)
    while at < size:
        if len(fields) == most:
            raise ValueError(f"it has more than {most} fields")
        tag, value = _read_varint(message, at, size)
        kind = tag & 7
        if kind == _BYTES:
            length, value = _read_varint(message, value, size)
            end = value + length
        elif kind == _VARINT:
            end = _read_varint(message, value, size)[1]
        elif kind in _FIXED_SIZES:
            end = value + _FIXED_SIZES[kind]
        else:
            raise ValueError(f"a field of the unknown type {kind} at byte {at}")
        if end > size:
            raise ValueError(f"the field at byte {at} ends behind the {size} bytes there are")
        fields.append(WireField(tag >> 3, at, value, end))
        at = end
    return fields


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(message: bytes | memoryview, at: int, size: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    number = shift = 0
    for place in range(at, min(at + _MAX_VARINT, size)):
        byte = message[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + 1
        shift += 7
    raise ValueError(f"no number at byte {at}")
