"""Points in time, sent as ISO 8601 says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ts.mlserver.codecs.base import InputCodec
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.lists import as_list, is_list_of
from ts.mlserver.codecs.registry import register_input_codec
from ts.mlserver.codecs.utils import InputOrOutput, as_input, new_output
from ts.mlserver.types import RequestInput, ResponseOutput

_Datetime = str | datetime


def _decode(tensor: InputOrOutput) -> list[datetime]:
    elements = [each.decode() if isinstance(each, bytes) else each for each in as_list(tensor.data.root)]
    try:
        return [datetime.fromisoformat(element) for element in elements]
    except (TypeError, ValueError) as error:
        raise CodecError(f"{tensor.name!r} is no date and time as ISO 8601 writes it: {error}") from error


@register_input_codec
class DatetimeCodec(InputCodec):
    """Content type ``datetime``: a list of `datetime`; texts in it are taken as they are."""

    ContentType = "datetime"
    TypeHint = list[_Datetime]
    OtherTypeHints = (list[datetime],)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is a list of `datetime`."""
        return is_list_of(payload, datetime)

    @classmethod
    def encode_output(
        cls, name: str, payload: list[_Datetime], use_bytes: bool = True, **kwargs: Any
    ) -> ResponseOutput:
        """Make an output; its data are ``bytes``, or with ``use_bytes`` false ``str``."""
        texts = [element if isinstance(element, str) else element.isoformat() for element in payload]
        data = [text.encode() for text in texts] if use_bytes else texts
        return new_output(name, [len(payload), 1], "BYTES", data, cls.ContentType)

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> list[datetime]:
        """Return the points in time of an output."""
        return _decode(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: list[_Datetime], use_bytes: bool = True, **kwargs: Any) -> RequestInput:
        """Make an input."""
        return as_input(cls.encode_output(name, payload, use_bytes))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> list[datetime]:
        """Return the points in time of an input."""
        return _decode(request_input)
