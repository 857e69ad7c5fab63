"""Decodes a wire row for a TorchServe handler: a dict of decoded values, and the request's headers.

TorchServe's rules: an ordinary body is the value of the single key ``body``; a form has one key per field. A value of
type ``application/json`` is parsed, ``text/…`` becomes ``str``, any other type a ``bytearray``. A value that cannot be
decoded by its charset becomes a ``bytearray``, too.
"""

import functools
import importlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ts.jobs.charsets import UTF_8, charset_of, refuse_charset
from ts.jobs.errors import RowFailure
from ts.jobs.row import Row
from ts.protocol.frames import Buffer
from ts.protocol.media_types import FORM, JSON, MULTIPART
from ts.protocol.messages import InferRow

logger = logging.getLogger(__name__)

#: Decodes one value of a row.
Decoder = Callable[[Any], Any]

#: Name, content type ("" if it has none) and value.
Parameter = tuple[str, str, bytes]

_FORM_TYPES = {MULTIPART, FORM}


def read_row(row: InferRow, *, decode: bool = True, forms: str = "") -> Row:
    """Return a row as the handler sees it.

    Args:
        decode: Whether JSON and text are decoded (``decode_input_request``).
        forms: The module whose ``parse_form(content_type, body)`` returns the fields of a form; empty: there is none.

    Raises:
        Failure: The body is a form that cannot be parsed, or text in a charset that is not known.
    """
    job_id, headers, content_type, body, _, _ = row
    if type(body) is list:
        parameters: Sequence[Parameter] = [each for item in body for each in _parameters(forms, *item)]
    else:
        decoder, value_types = _body_type(content_type)
        if decoder is not None:
            value = decoder(body) if decode else _own(body)
            return Row(job_id, {"body": value}, headers, value_types)
        parameters = _form(forms, content_type, body)
    data: dict[str, Any] = {}
    files: dict[str, list[Any]] = {}
    for name, type_, value in parameters:
        data[name] = _decoder(type_)(value) if decode else _own(value)
        if type_ and name:  # a file
            files.setdefault(name, []).append(data[name])
    data.update((name, several) for name, several in files.items() if len(several) > 1)
    return Row(job_id, data, headers, [(name, media_type(type_)) for name, type_, _ in parameters])


@functools.lru_cache(maxsize=256)
def _body_type(content_type: str | bytes | None) -> tuple[Decoder | None, tuple[tuple[str, str]]]:
    """Return the decoder of a body of that type (None for a form), and the pseudo header of the body."""
    type_ = media_type(content_type)
    decoder = None if type_.lower() in _FORM_TYPES else _decoder(content_type)
    return decoder, (("body", type_),)


def form_fields(row: InferRow, forms: str) -> Sequence[Parameter] | None:
    """Return the fields of a row that is a form, or has one among its parameters; None for any other row.

    Raises Failure: the form cannot be parsed.
    """
    body = row.body
    if type(body) is not list:
        return _form(forms, row.content_type, body) if _body_type(row.content_type)[0] is None else None
    if any(name is None and _body_type(type_)[0] is None for name, type_, _ in body):
        return [each for item in body for each in _parameters(forms, *item)]
    return None


def media_type(content_type: str | bytes | None) -> str:
    """Return a content type without its parameters."""
    return _text(content_type).partition(";")[0].strip()


def _text(content_type: str | bytes | None) -> str:
    return content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type or ""


def _parameters(
    forms: str, name: str | bytes | None, content_type: str | bytes | None, value: str | bytes
) -> Sequence[Parameter]:
    """Return the parameters in one item of a body that is a list: the named one, or (nameless) those of a raw body."""
    raw = value.encode() if isinstance(value, str) else value
    if name is None:
        decoder, ((key, _),) = _body_type(content_type)
        return _form(forms, content_type, raw) if decoder is None else [(key, _text(content_type), raw)]
    return [(name if isinstance(name, str) else name.decode("utf-8", "replace"), _text(content_type), raw)]


def _form(forms: str, content_type: str | bytes | None, body: bytes) -> Sequence[Parameter]:
    if not forms:
        raise RowFailure(415, f"This server reads no forms: {media_type(content_type)}; send the value as the body")
    parameters: Sequence[Parameter] = importlib.import_module(forms).parse_form(content_type or "", bytes(body))
    return parameters


@functools.lru_cache(maxsize=256)
def _decoder(content_type: str | bytes | None) -> Decoder:
    kind = media_type(content_type).lower()  # types are the same in any case (RFC 9110, 8.3.1)
    if kind != JSON and not kind.startswith("text"):
        return _own
    charset = charset_of(content_type)
    if charset is None:
        return lambda _: refuse_charset(content_type)
    decode = _decode_json if kind == JSON else _decode_text
    return decode if charset == UTF_8 else functools.partial(decode, charset=charset)


def _own(value: Buffer) -> bytearray:
    """Return a value as the handler's own ``bytearray``; a large body was received as one and is not copied."""
    return value if isinstance(value, bytearray) else bytearray(value)


def _decode_json(value: bytes, charset: str = UTF_8) -> Any:
    try:
        try:
            return json.loads(str(value, charset))
        except ValueError:
            return json.loads(value)  # finds out that it is UTF-16 or UTF-32, or starts with a byte order mark
    except (ValueError, RecursionError) as error:  # the client's mistake, which needs no traceback of the library's
        logger.warning("Failed json decoding of input data. Forwarding encoded payload: %s", error)
        return _own(value)


def _decode_text(value: bytes, charset: str = UTF_8) -> str | bytearray:
    try:
        return str(value, charset)
    except UnicodeDecodeError as error:
        logger.warning("Failed text decoding of input data. Forwarding encoded payload: %s", error)
        return _own(value)
