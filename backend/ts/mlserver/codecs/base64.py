"""Bytes that are sent as base64."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ts.mlserver.codecs.base import InputCodec
from ts.mlserver.codecs.lists import ListElement, as_list, is_list_of
from ts.mlserver.codecs.registry import register_input_codec
from ts.mlserver.codecs.utils import as_input, new_output
from ts.mlserver.types import RequestInput, ResponseOutput


def _bytes(element: ListElement) -> bytes:
    return element.encode() if isinstance(element, str) else element


def _decoded(element: ListElement) -> bytes:
    """Return what base64 says; what is no base64 is taken for the bytes themselves, as MLServer does."""
    try:
        return base64.b64decode(_bytes(element), validate=True)
    except binascii.Error:
        return _bytes(element)


@register_input_codec
class Base64Codec(InputCodec):
    """Content type ``base64``: a list of ``bytes``."""

    ContentType = "base64"
    TypeHint = list[bytes]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is a list of ``bytes``."""
        return is_list_of(payload, bytes)

    @classmethod
    def encode_output(cls, name: str, payload: list[bytes], use_bytes: bool = True, **kwargs: Any) -> ResponseOutput:
        """Make an output; its data are base64 as ``bytes``, or with ``use_bytes`` false as ``str``."""
        packed = [base64.b64encode(_bytes(element)) for element in payload]
        data = packed if use_bytes else [element.decode() for element in packed]
        return new_output(name, [len(payload), 1], "BYTES", data, cls.ContentType)

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> list[bytes]:
        """Return the bytes of an output."""
        return [_decoded(element) for element in as_list(response_output.data.root)]

    @classmethod
    def encode_input(cls, name: str, payload: list[bytes], use_bytes: bool = True, **kwargs: Any) -> RequestInput:
        """Make an input."""
        return as_input(cls.encode_output(name, payload, use_bytes))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[bytes]:
        """Return the bytes of an input."""
        return [_decoded(element) for element in as_list(request_input.data.root)]
