"""The values of a call of another function as the body of a request, and its result from the body of the answer.

They look as a client's would: the caller is a client of the function, whose signature says how values are written.
"""

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from ts.contracts.served_functions.call_values import CallValues
from ts.contracts.served_functions.invalid_values import words
from ts.contracts.served_functions.value_types import ARRAY_FILE, array_file, value_type_of, written
from ts.jobs.json_values import array_value
from ts.protocol.media_types import BYTES, JSON, JSON_LINES, TEXT


def body_of(values: CallValues, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the content type and the body of a request with these arguments, those with their defaults left out.

    Raises ValueError, TypeError: an argument cannot be written.
    """
    if not arguments:
        return TEXT, b""
    types = values.types
    if len(types) == 1:
        ((name, value),) = arguments.items()
        part = _part(types[name], value)
        if value is None or (isinstance(value, str | bytes | bytearray) and not value):
            return _form([(name, part)])  # as a whole body it would stand for the default
        return part
    parts = {name: _part(types[name], value) for name, value in arguments.items()}
    if all(kind in (TEXT, JSON) for kind, _ in parts.values()):
        return JSON, _json(dict(arguments))
    return _form(parts.items())


def accepted_for(values: CallValues) -> str:
    """Return the header ``accept`` of a call, with which an array comes as a file: it keeps its type and costs less."""
    found = value_type_of(values.result)
    return ARRAY_FILE if found is not None and not found.is_file else "*/*"


def result_of(values: CallValues, content_type: str, body: bytes | bytearray) -> Any:
    """Return the result in an answer, checked against the annotation. Raises ValueError: it does not fit that."""
    kind, reader = content_type.partition(";")[0].strip().lower(), values.result_reader
    try:
        if kind == JSON:
            return json.loads(body) if reader is None else reader.validate_json(bytes(body))
        value = str(body, "utf-8") if kind.startswith("text/") else bytes(body)
        return value if reader is None else reader.validate_python(value)
    except ValidationError as error:
        problem = words(error.errors(include_url=False)).removeprefix(": ")
        raise ValueError(f"the result does not fit its annotation: {problem}") from None


def parts_of(values: CallValues, content_type: str, body: bytes | bytearray) -> list[Any]:
    """Return the values in a part of a stream, checked against the annotation. Raises ValueError: one does not fit."""
    if content_type.partition(";")[0].strip().lower() == JSON_LINES:
        return [result_of(values, JSON, line) for line in bytes(body).splitlines()]
    return [result_of(values, content_type, body)] if body else []


def _part(kind: Any, value: Any) -> tuple[str, bytes]:
    """Return the content type and the bytes of one value."""
    if isinstance(value, bytes | bytearray):
        return BYTES, bytes(value)
    if value_type_of(kind) is not None and hasattr(value, "tolist"):
        return ARRAY_FILE, array_file(value)
    if (file := written(value)) is not None:
        return file[1], file[0]
    if kind is str and isinstance(value, str):
        return TEXT, value.encode()
    return JSON, _json(value)


def _json(value: Any) -> bytes:
    return to_json(value, inf_nan_mode="constants", fallback=_plain)


def _plain(value: Any) -> Any:
    if (file := written(value)) is not None:
        return base64.b64encode(file[0]).decode()
    return array_value(value)


def _form(parts: Iterable[tuple[str, tuple[str, bytes]]]) -> tuple[str, bytes]:
    """Return a form; each field is a file, since only files have a type of their own."""
    boundary = uuid.uuid4().hex
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
        f"Content-Type: {kind}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for name, (kind, content) in parts
    )
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()
