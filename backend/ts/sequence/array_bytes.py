"""numpy's arrays and scalars as plain parts and back: every type whose bytes mean the same on each machine."""

import ast
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy

from ts.protocol.frames import Buffer
from ts.sequence.state_error import StateError

#: The kinds of types whose bytes are their values: truth values, integers, floats, complex numbers, moments, spans of
#: time, bytes, text, and records of these.
_KINDS: Final = frozenset("biufcMmSUV")
#: The most bytes of a float, and of a complex number: what longer ones mean depends on the processor.
_LONGEST: Final = {"f": 8, "c": 16}


class ArrayParts(NamedTuple):
    """An array; ``type`` is the name of its type as numpy's files have it, and what is read may be in pieces."""

    raw: memoryview | bytes | Sequence[Buffer]
    type: str
    shape: Sequence[int]


def is_plain(value: Any) -> bool:
    """Whether this is a scalar, or an array of no subclass."""
    return type(value) is numpy.ndarray or isinstance(value, numpy.generic)


def parts_of(value: Any, place: str) -> ArrayParts:
    """Return the parts of a plain array. Raises StateError: its type cannot be stored."""
    array = numpy.asarray(value)
    name = _name_of(array.dtype, place)
    flat = numpy.ascontiguousarray(array).reshape(-1)
    return ArrayParts(flat.view(numpy.uint8).data if flat.nbytes else b"", name, array.shape)


def array_of(parts: ArrayParts) -> Any:
    """Return an array, which can be changed in place. Raises ValueError: the parts do not fit together."""
    raw, name, shape = parts
    dtype = _type_of(name)
    pieces: Sequence[Buffer] = [raw] if isinstance(raw, memoryview | bytes) else raw
    size = sum(map(len, pieces))
    if size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{size} bytes are no array of type {dtype} and shape {list(shape)}")
    if len(pieces) == 1:
        return numpy.frombuffer(pieces[0], dtype).reshape(shape).copy() if size else numpy.zeros(shape, dtype)
    array = numpy.empty(shape, dtype)
    content, at = array.reshape(-1).view(numpy.uint8), 0
    for piece in pieces:
        content[at : at + len(piece)] = numpy.frombuffer(piece, numpy.uint8)
        at += len(piece)
    return array


def special_parts(value: Any, place: str) -> list[Any]:
    """Return what `special_of` makes an array of a subclass of. Raises StateError: the subclass cannot be stored."""
    kind = type(value)
    if kind is numpy.matrix:
        return ["matrix", numpy.asarray(value)]
    if kind is numpy.ma.MaskedArray and type(value.data) is numpy.ndarray:
        mask = None if value.mask is numpy.ma.nomask else numpy.asarray(value.mask)
        return ["masked", value.data, mask, numpy.asarray(value.fill_value), bool(value.hardmask)]
    raise StateError(
        f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored: keep numpy.asarray of it, or pass"
        " encoders={the class: (encode, decode)} to SequenceCache"
    )


def special_of(form: str, *parts: Any) -> Any:
    """Return the array of these parts. Raises ValueError: they are no array."""
    if form == "matrix":
        return parts[0].view(numpy.matrix)
    if form == "masked":
        data, mask, fill_value, is_hard = parts
        mask = numpy.ma.nomask if mask is None else mask
        return numpy.ma.MaskedArray(data, mask=mask, fill_value=fill_value[()], hard_mask=is_hard)
    raise ValueError(f"arrays have no form {form!r}")


def _name_of(dtype: Any, place: str) -> str:
    if dtype.kind in _KINDS and not dtype.hasobject and dtype.itemsize <= _LONGEST.get(dtype.kind, dtype.itemsize):
        described: Any = numpy.lib.format.dtype_to_descr(dtype)
        name = described if isinstance(described, str) else repr(described)
        if _type_of(name) == dtype:
            return name
    raise StateError(f"{place} is an array of type {dtype}, which cannot be stored")


def _type_of(name: str) -> Any:
    described: Any = ast.literal_eval(name) if name[:1] in "[(" else name
    return numpy.lib.format.descr_to_dtype(described)
