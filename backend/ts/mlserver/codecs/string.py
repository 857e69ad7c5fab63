"""Text: a tensor of BYTES as a list of ``str``."""

from __future__ import annotations

from typing import Any, ClassVar

from ts.mlserver.codecs.base import InputCodec
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.lists import as_list, is_list_of
from ts.mlserver.codecs.registry import register_input_codec, register_request_codec
from ts.mlserver.codecs.utils import InputOrOutput, SingleInputRequestCodec, as_input, new_output
from ts.mlserver.types import RequestInput, ResponseOutput


def encode_str(elem: str) -> bytes:
    """Return text as it is sent."""
    return elem.encode()


def decode_str(encoded: Any, str_codec: str = "utf-8") -> Any:
    """Return text for bytes; text and None are returned as they are, anything else as the empty text."""
    if isinstance(encoded, bytes):
        return encoded.decode(str_codec)
    return encoded if encoded is None or isinstance(encoded, str) else ""


def _decode(tensor: InputOrOutput) -> list[str]:
    try:
        return [decode_str(element) for element in as_list(tensor.data.root)]
    except UnicodeDecodeError as error:
        raise CodecError(f"{tensor.name!r} is not UTF-8: {error}") from error


@register_input_codec
class StringCodec(InputCodec):
    """Content type ``str``: a list of ``str``."""

    ContentType = "str"
    TypeHint = list[str]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is a list of ``str``."""
        return is_list_of(payload, str)

    @classmethod
    def encode_output(cls, name: str, payload: list[str], use_bytes: bool = True, **kwargs: Any) -> ResponseOutput:
        """Make an output of texts; its data are ``bytes``, which gRPC needs, or with ``use_bytes`` false ``str``."""
        data = [encode_str(element) for element in payload] if use_bytes else list(payload)
        return new_output(name, [len(payload), 1], "BYTES", data, cls.ContentType)

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> list[str]:
        """Return the texts of an output."""
        return _decode(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: list[str], use_bytes: bool = True, **kwargs: Any) -> RequestInput:
        """Make an input of texts."""
        return as_input(cls.encode_output(name, payload, use_bytes))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[str]:
        """Return the texts of an input."""
        return _decode(request_input)


@register_request_codec
class StringRequestCodec(SingleInputRequestCodec):
    """Content type ``str`` of a request: its only input is a list of ``str``."""

    InputCodec: ClassVar[type[InputCodec]] = StringCodec
    ContentType = StringCodec.ContentType
    TypeHint = list[str]
