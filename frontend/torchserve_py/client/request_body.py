"""What a caller hands in, as the body of a request: bytes, texts, and values that become JSON.

Arrays and tensors become lists, models of pydantic and dataclasses objects. Their packages are not imported for it.
"""

import dataclasses
import json
from typing import Any, Final

#: What says that no value was given, where None is one.
NOTHING: Final[Any] = object()
_BYTES: Final = "application/octet-stream"
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"


def body_of(body: Any, json_value: Any = NOTHING) -> tuple[bytes, str]:
    """Return the bytes of a request's body, and its media type.

    Args:
        body: Bytes or a text, sent as they are; any other value is sent as JSON, and None as an empty body.
        json_value: A value to send as JSON, a text too, in place of ``body``.

    Raises TypeError: both are given, or JSON cannot represent the value.
    """
    if json_value is not NOTHING:
        if body is not None:
            raise TypeError("give either a body or json=, not both")
        return _encoded(json_value), _JSON
    if body is None:
        return b"", _BYTES
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), _BYTES
    if isinstance(body, str):
        return body.encode(), _TEXT
    return _encoded(body), _JSON


def step_of(body: Any) -> bytes:
    """Return the body of a step: bytes and texts as they are, other values as JSON. Raises TypeError: as `body_of`."""
    return body_of(body)[0]


def _encoded(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """Return what JSON can represent in place of a value. Raises TypeError: there is nothing."""
    if hasattr(value, "model_dump"):  # a model of pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # an array, a tensor, or one of their numbers
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(
        f"a value of type {type(value).__name__} cannot be sent as JSON; send bytes, a text, or plain values"
    )
