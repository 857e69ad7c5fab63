"""The two encodings of payloads: JSON, and MessagePack with tagged maps, both in the form of Truss.

JSON is that of Python's encoder (blanks behind separators, ASCII only), with ``null`` for NaN and infinities. The
tagged maps are also those of the package msgpack-numpy; what it would pickle, arrays of Python objects, is refused in
both directions: unpickling runs code of the sender's choice.
"""

import datetime
import decimal
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ts.jobs.json_values import array_value, json_text
from ts.protocol.backed_msgpack import unpack

#: What is wrong where the package itself finds no words.
_PROBLEMS: Final[Mapping[type[Exception], str]] = {
    msgpack.FormatError: "it holds a byte with which no value begins.",
    msgpack.StackError: "its values are nested too deeply.",
}
#: Written as pydantic writes them: ISO 8601 and decimal text.
_AS_TEXT: Final = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def to_json(value: Any) -> bytes:
    """Return the JSON text of a model's result.

    Raises:
        TypeError: A value in it has no form in JSON.
        ValueError: It holds itself.
        RecursionError: It is nested too deeply.
    """
    return json_text(value, json_value).encode()


def json_value(value: Any) -> Any:
    """Return plain values for a value that Python's encoder does not know."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, _AS_TEXT):
        return to_jsonable_python(value)
    return array_value(value)


_UNSUPPORTED: Final = "unsupported payload"


def to_msgpack(value: Any) -> bytes:
    """Return the binary form of a model's result.

    Raises:
        TypeError: A value in it has no binary form.
        ValueError: The same, or it is nested too deeply.
        OverflowError: An integer has more than 64 bits.
    """
    packed: bytes = msgpack.packb(value, default=_tagged)
    return packed


def from_msgpack(body: bytes) -> Any:
    """Return the value of a payload, arrays as read-only views.

    Raises ValueError: it cannot be decoded; ModuleNotFoundError: it needs numpy, which is not installed.
    """
    try:
        return unpack(body, object_hook=_untagged)
    except (ValueError, ModuleNotFoundError) as error:
        if str(error):
            raise
        text = _PROBLEMS.get(type(error), type(error).__name__)
        raise ValueError(f"Invalid MessagePack payload: {text}") from error
    except Exception as error:  # a tagged map that is not made as it must be fails in all the ways of its constructor
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _datetime_text(value: datetime.datetime) -> str:
    text = value.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def _time_text(value: datetime.time) -> str:
    if value.tzinfo is not None:
        raise ValueError(f"the time {value} has a time zone, for which there is no binary form")
    return value.isoformat()


def _timedelta_numbers(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _timedelta(data: Any) -> datetime.timedelta:
    days, seconds, microseconds = data
    return datetime.timedelta(days, seconds, microseconds)


#: By tag: the type, the data for a value, and the value for data. A datetime is a date, so it comes first.
_TAGS: Final[Mapping[bytes, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    b"__dt_datetime_iso__": (datetime.datetime, _datetime_text, datetime.datetime.fromisoformat),
    b"__dt_date_iso__": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    b"__dt_time_iso__": (datetime.time, _time_text, datetime.time.fromisoformat),
    b"__dt_timedelta__": (datetime.timedelta, _timedelta_numbers, _timedelta),
    b"__decimal__": (decimal.Decimal, str, decimal.Decimal),
    b"__uuid__": (uuid.UUID, str, uuid.UUID),
    b"complex": (complex, repr, lambda data: complex(_text(data))),
}


def _tagged(value: Any) -> Any:
    numpy = sys.modules.get("numpy")  # a value can only be one of numpy's if the model has imported it
    if numpy is not None and isinstance(value, numpy.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of Python objects has no binary form")
        structured = value.dtype.kind == "V"
        return {
            b"nd": True,
            b"type": value.dtype.descr if structured else value.dtype.str,
            b"kind": b"V" if structured else b"",
            b"shape": value.shape,
            b"data": value.tobytes(),
        }
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind != "V":
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    for tag, (kind, data_of, _) in _TAGS.items():
        if isinstance(value, kind):
            return {tag: True, b"data": data_of(value)}
    raise TypeError(f"a {type(value).__name__} has no binary form")


def _untagged(value: dict[Any, Any]) -> Any:
    """Return the value of a tagged map, or any other map itself."""
    if b"data" not in value:
        return value
    if b"nd" in value:
        return _array(value)
    for tag, (_, _, value_of) in _TAGS.items():
        if tag in value:
            return value_of(value[b"data"])
    return value


def _array(value: Mapping[bytes, Any]) -> Any:
    import numpy as np

    from ts.handler_utils.client_arrays import client_array

    if value.get(b"kind") == b"O":
        raise ValueError(_UNSUPPORTED)
    dtype = _dtype(np, value[b"type"])
    if dtype.hasobject:
        raise ValueError(_UNSUPPORTED)
    if value[b"nd"] is True:
        return client_array(value[b"data"], dtype, value[b"shape"])
    return np.frombuffer(value[b"data"], dtype=dtype)[0]


def _dtype(numpy: Any, described: Any) -> Any:
    if isinstance(described, list):
        return numpy.dtype([_field(*field) for field in described])
    if isinstance(described, str | bytes):
        return numpy.dtype(_text(described))
    raise ValueError(f"an array cannot have the type {described!r}")


def _field(name: Any, described: Any, *shape: Any) -> tuple[Any, ...]:
    """Return one field of a structured array: its name, its type and, for one that is an array itself, its shape."""
    kind = [_field(*field) for field in described] if isinstance(described, list) else _text(described)
    return (_text(name), kind, *(tuple(size) for size in shape))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
