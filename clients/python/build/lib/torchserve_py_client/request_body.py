"""What a caller hands in, as the body of a request: bytes, texts, and values that become JSON.

Arrays and tensors become lists, models of pydantic and dataclasses objects, images PNG files. Their packages are not
imported for it.
"""

import base64
import dataclasses
import io
import json
import sys
from typing import Any, Final

#: What says that no value was given, where None is one.
NOTHING: Final[Any] = object()
_BYTES: Final = "application/octet-stream"
_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_PNG: Final = "image/png"
#: Modes of images that PNG has.
_MODES: Final = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"))


def body_of(body: Any, json_value: Any = NOTHING) -> tuple[bytes, str]:
    """Return the bytes of a request's body, and its media type.

    Args:
        body: Bytes or a text, sent as they are; an image of PIL, sent as PNG; any other value is sent as JSON, and None
            as an empty body.
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
    if _is_image(body):
        return _png(body), _PNG
    return _encoded(body), _JSON


def step_of(body: Any) -> bytes:
    """Return the body of a step: bytes and texts as they are, other values as JSON. Raises TypeError: as `body_of`."""
    return body_of(body)[0]


def _encoded(value: Any) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _is_image(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def _png(image: Any) -> bytes:
    out = io.BytesIO()
    (image if image.mode in _MODES else image.convert("RGB")).save(out, "PNG")
    return out.getvalue()


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
    if _is_image(value):
        return base64.b64encode(_png(value)).decode()
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes cannot be sent within JSON; send them alone, or as a text in base64")
    raise TypeError(
        f"a value of type {type(value).__name__} cannot be sent as JSON; send bytes, a text, or plain values"
    )
