"""Decodes the header blocks of a connection (RFC 7541), within limits.

Clients send the same headers with every call. Once the headers are in the compression table, each block is the same few
bytes; so results are cached while the table does not change. Blocks that refer to one field share one object, so that
a reference of one byte does not cost the memory of a field.
"""

from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from torchserve_py.net.http2.frames import ConnectionFailed, ErrorCode
from torchserve_py.net.http2.request_head import FIELD_SIZE, Field, RequestHead, Trailers, read_head

#: The size limit of a request's headers, as RFC 9113 (6.5.2) counts.
MAX_HEADER_LIST_SIZE: Final = 65_536
#: The most fields and table changes in a block.
MAX_FIELDS: Final = 256
#: The most bytes of cached blocks and results per connection.
_MAX_KEPT: Final = 65_536
#: The most bytes of shared fields per connection; the compression table has 4,096.
_MAX_FIELDS_KEPT: Final = 16_384
#: The most bytes of an integer behind its first.
_MAX_INTEGER: Final = 4


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_LIST_SIZE)
        self._kept: dict[bytes, RequestHead | Trailers | None] = {}
        self._room = _MAX_KEPT
        self._fields: dict[tuple[bytes, bytes], Field] = {}
        self._fields_size = 0

    def decode(self, block: bytes) -> RequestHead | Trailers | None:
        """Return what a block says; None: malformed. Raises ConnectionFailed: it cannot be decoded, or is too large."""
        if block in self._kept:
            return self._kept[block]
        if len(block) > MAX_FIELDS and _has_too_many_fields(block):
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, f"more than {MAX_FIELDS} headers")
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = (entries[0] if entries else None, len(entries), table.maxsize)
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "headers larger than 64 KiB") from error
        except HPACKError as error:
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        head = read_head([self._field(name, value) for name, value, *_ in headers])
        newest, count, limit = before
        if (entries[0] if entries else None) is not newest or len(entries) != count or table.maxsize != limit:
            self._kept.clear()
            self._room = _MAX_KEPT
            return head
        size = len(block) + sum(len(name) + len(value) + FIELD_SIZE for name, value, *_ in headers)
        if size <= self._room:
            self._room -= size
            self._kept[block] = head
        return head

    def _field(self, name: bytes, value: bytes) -> Field:
        field = self._fields.get((name, value))
        if field is None:
            field = name.decode("latin-1"), value.decode("latin-1")
            size = len(name) + len(value) + FIELD_SIZE
            if size < _MAX_FIELDS_KEPT // 2:
                self._fields_size += size
                if self._fields_size > _MAX_FIELDS_KEPT:
                    self._fields.clear()
                    self._fields_size = size
                self._fields[name, value] = field
        return field


def _has_too_many_fields(block: bytes) -> bool:
    """Count the fields of a block, and what changes the table, without decoding them (RFC 7541, 6).

    Raises ConnectionFailed: an integer is larger than any that is used.
    """
    position, count, end = 0, 0, len(block)
    while position < end:
        count += 1
        if count > MAX_FIELDS:
            return True
        first = block[position]
        if first & 0x80:
            position = _behind_integer(block, position, 0x7F)[1]
            continue
        if first & 0xE0 == 0x20:
            position = _behind_integer(block, position, 0x1F)[1]
            continue
        index, position = _behind_integer(block, position, 0x3F if first & 0x40 else 0x0F)
        for _ in range(1 if index else 2):
            if position >= end:
                return False  # cut short; decoding raises the error
            length, position = _behind_integer(block, position, 0x7F)
            position += length
    return False


def _behind_integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return an integer whose prefix has the bits of ``mask``, and its end (RFC 7541, 5.1)."""
    number = block[position] & mask
    position += 1
    if number < mask:
        return number, position
    for shift, byte in enumerate(block[position : position + _MAX_INTEGER]):
        number += (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, position + shift + 1
    raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, "an integer that does not end, or is too large")
