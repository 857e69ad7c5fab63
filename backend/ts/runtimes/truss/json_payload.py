"""JSON payloads: what a model may return, and how each of it is written.

The text is that of Python's encoder (blanks behind separators, ASCII only), as Truss writes it. Beyond plain values,
numpy's numbers and arrays, dates and times, `decimal.Decimal`, `uuid.UUID` and pydantic models can be anywhere in a
result. JSON knows neither NaN nor infinity: they are written as ``null``.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import sys
import uuid
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

#: Written as pydantic writes them: ISO 8601 and decimal text.
_AS_TEXT: Final = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def to_json(value: Any) -> bytes:
    """Return the JSON text of a model's result.

    Raises:
        TypeError: A value in it has no form in JSON.
        ValueError: It holds itself.
        RecursionError: It is nested too deeply.
    """
    try:
        return _encode(value).encode()
    except (TypeError, ValueError):
        # A number that JSON does not know, or a key that is one of numpy's: rare enough to try the fast way first.
        return _encode(plain(value)).encode()


def from_json(body: bytes) -> Any:
    """Return what a JSON text says; UTF-16 and UTF-32 are recognized.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    return json.loads(body)


def _other(value: Any) -> Any:
    """Return what stands for a value that Python's encoder does not know."""
    numpy = sys.modules.get("numpy")  # a value can only be one of numpy's if the model has imported it
    if numpy is not None:
        if isinstance(value, numpy.generic):
            return value.item()
        if isinstance(value, numpy.ndarray):
            return value.tolist()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, _AS_TEXT):
        return to_jsonable_python(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


_encode = json.JSONEncoder(allow_nan=False, default=_other).encode


def plain(value: Any) -> Any:
    """Return ``value`` as dicts, lists, text and numbers: with null for each number that JSON does not know.

    Raises:
        TypeError: A value in it has no form in JSON.
        RecursionError: It is nested too deeply.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {_plain_key(key): plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    return plain(_other(value))


def _plain_key(key: Any) -> Any:
    numpy = sys.modules.get("numpy")
    return key.item() if numpy is not None and isinstance(key, numpy.generic) else key
