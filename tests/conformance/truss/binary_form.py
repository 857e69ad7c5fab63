"""Truss's binary form, as its client libraries write and read it: MessagePack with tagged maps, whose keys are bytes.

Written from the contract, not with the server's code.
"""

import datetime
import decimal
import pickle
import uuid
from pathlib import Path
from typing import Any

import msgpack
import numpy

VALUES = [
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4, 5),
    datetime.timedelta(days=-1, seconds=2, microseconds=3),
    decimal.Decimal("1.50"),
    uuid.UUID(int=7),
    complex(1, -2),
    numpy.float32(0.5),
    numpy.bool_(True),
    numpy.array(3.5),
    numpy.arange(6, dtype="<i2").reshape(2, 3),
    numpy.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
]


def encode(value: Any) -> bytes:
    """Write a value."""
    return msgpack.packb(value, default=_tag)


def decode(data: bytes) -> Any:
    """Read a value."""
    return msgpack.unpackb(data, object_hook=_untag, strict_map_key=False)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same type."""
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)


def object_array(trap: Path | None = None) -> bytes:
    """An array of objects, which is a pickle; it makes the file ``trap`` when it is read."""
    content = pickle.dumps(_Trap(trap)) if trap is not None else pickle.dumps([1])
    return msgpack.packb({b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": content})


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def _tag(value: Any) -> Any:
    match value:
        case datetime.datetime():
            text = value.isoformat()
            return {b"__dt_datetime_iso__": True, b"data": text.removesuffix("+00:00") + "Z" if value.tzinfo else text}
        case datetime.date():
            return {b"__dt_date_iso__": True, b"data": value.isoformat()}
        case datetime.time():
            return {b"__dt_time_iso__": True, b"data": value.isoformat()}
        case datetime.timedelta():
            return {b"__dt_timedelta__": True, b"data": [value.days, value.seconds, value.microseconds]}
        case decimal.Decimal():
            return {b"__decimal__": True, b"data": str(value)}
        case uuid.UUID():
            return {b"__uuid__": True, b"data": str(value)}
        case complex():
            return {b"complex": True, b"data": repr(value)}
        case numpy.ndarray():
            structured = value.dtype.fields is not None
            return {
                b"nd": True,
                b"type": value.dtype.descr if structured else value.dtype.str,
                b"kind": b"V" if structured else b"",
                b"shape": list(value.shape),
                b"data": value.tobytes(),
            }
        case numpy.generic():
            return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise TypeError(type(value))


def _untag(tagged: dict[Any, Any]) -> Any:
    data = tagged.get(b"data")
    if tagged.get(b"nd") is True:
        kind = [tuple(field) for field in tagged[b"type"]] if tagged[b"kind"] == b"V" else tagged[b"type"]
        return numpy.frombuffer(data, numpy.dtype(kind)).reshape(tagged[b"shape"])
    if tagged.get(b"nd") is False:
        return numpy.frombuffer(data, numpy.dtype(tagged[b"type"]))[0]
    for tag, read in _READERS.items():
        if tag in tagged:
            return read(data)
    return tagged


_READERS = {
    b"__dt_datetime_iso__": datetime.datetime.fromisoformat,
    b"__dt_date_iso__": datetime.date.fromisoformat,
    b"__dt_time_iso__": datetime.time.fromisoformat,
    b"__dt_timedelta__": lambda data: datetime.timedelta(days=data[0], seconds=data[1], microseconds=data[2]),
    b"__decimal__": decimal.Decimal,
    b"__uuid__": uuid.UUID,
    b"complex": complex,
}
