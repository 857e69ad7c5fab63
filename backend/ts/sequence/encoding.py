"""A handler's state as bytes and back: msgpack, with the bytes of numpy arrays and torch tensors behind the tree.

No pickle: decoding a state never runs code. Types that msgpack cannot distinguish (tuples, sets, ``bytearray`` …) are
marked with extension types, so that decoding restores the original types. An encoded state is one msgpack array::

    [tree, arrays, tensors]     arrays, tensors: b"" or a list of bytes; the tree refers to them by number

In what earlier releases have written, arrays and tensors are files of safetensors. numpy and torch are imported only if
a state holds their values.

Neither end calls itself in C code: what is nested too deep for Python is an error, and never the end of the process.
"""

import importlib
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from ts.jobs.errors import device_failure
from ts.protocol.backed_msgpack import unpack
from ts.protocol.frames import Buffer
from ts.sequence.state_error import StateError

#: Turns an instance of a user's class into plain values.
Encoder = Callable[[Any], Any]
#: Restores the instance from these plain values.
Decoder = Callable[[Any], Any]


class _Kind(IntEnum):
    """The extension types; the content of all but `INTEGER` and `BYTEARRAY` is msgpack."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    INTEGER = 4  # of more than 64 bits
    BYTEARRAY = 5
    COMPLEX = 6
    DEQUE = 7
    PAIRS = 8  # of a dict whose keys are not all scalars, or an OrderedDict
    CUSTOM = 9
    ARRAY = 10
    TENSOR = 11
    SPECIAL_ARRAY = 12  # of a subclass
    SPECIAL_TENSOR = 13  # not dense, quantized, or with gradients
    PART = 14  # bytes that are a part by themselves; in no store


_SEQUENCES: Final[Mapping[type, int]] = {tuple: int(_Kind.TUPLE), set: int(_Kind.SET), frozenset: int(_Kind.FROZENSET)}
_TYPES: Final[Mapping[int, type]] = {code: kind for kind, code in _SEQUENCES.items()}
_SCALARS = frozenset((int, float, str, bool, bytes, type(None)))
#: The parts of a state, each in pieces.
Parts: TypeAlias = Sequence[Sequence[Buffer]]
#: From how many bytes an array or tensor is a part by itself.
_LARGE_PART: Final = 2**16
#: How many containers may be in each other.
MAX_DEPTH: Final = 100
#: The depth up to which states are read: earlier releases have written as much.
_MAX_READ_DEPTH: Final = 200
#: What reading raises if the bytes are no state.
_UNREADABLE: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, SyntaxError),
    msgpack.UnpackException,
)


def _large_integer(value: Any) -> msgpack.ExtType:
    """Encode an integer of more than 64 bits, the only scalar that msgpack cannot write itself."""
    return msgpack.ExtType(_Kind.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_pack_valid: Final = msgpack.Packer(default=_large_integer).pack
_pack_any: Final = msgpack.Packer(default=_large_integer, unicode_errors="surrogatepass").pack


def _pack(value: Any) -> bytes:
    try:
        return _pack_valid(value)  # type: ignore[no-any-return]
    except UnicodeEncodeError:  # half a character, as JSON may have it
        return _pack_any(value)  # type: ignore[no-any-return]


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_flat(value: Any) -> bool:
    """Whether a value is a scalar, or a list or dict of nothing else; C code finds that out."""
    kind = type(value)
    if kind is dict:
        return _SCALARS.issuperset(map(type, value)) and _SCALARS.issuperset(map(type, value.values()))
    return kind in _SCALARS or (kind is list and _SCALARS.issuperset(map(type, value)))


class _Written:
    """The bytes of the arrays and tensors of a state, in order; and the classes in it that have encoders."""

    __slots__ = ("arrays", "classes", "tensors")

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.tensors: list[Any] = []
        self.classes: set[type] = set()


def _add(buffers: list[Any], raw: Any) -> int:
    buffers.append(raw)
    return len(buffers) - 1


class _Marked(NamedTuple):
    """A value of an extension type, before it is restored."""

    code: int
    content: bytes


_UNRESTORED: Final = frozenset((list, dict, _Marked))


class StateEncoding:
    """Writes and reads states.

    Args:
        encoders: For each further class (exactly that class, no subclass) a pair of functions: one turns an instance
            into values that can be encoded, the other restores the instance.
        gpu_id: The device to which tensors that were on a GPU are restored; None restores them to main memory.
    """

    def __init__(
        self, encoders: Mapping[type, tuple[Encoder, Decoder]] | None = None, gpu_id: int | None = None
    ) -> None:
        self._encoders = {cls: (_name_of(cls), encode) for cls, (encode, _) in (encoders or {}).items()}
        self._decoders = {_name_of(cls): decode for cls, (_, decode) in (encoders or {}).items()}
        self._gpu_id = gpu_id
        #: The classes of which an instance was restored from what was written of it.
        self._proven: set[type] = set()

    def add(self, cls: type, encode: Encoder, decode: Decoder) -> None:
        """Take a further class."""
        self._encoders[cls] = (_name_of(cls), encode)
        self._decoders[_name_of(cls)] = decode

    def encode(self, state: Any) -> bytes:
        """Return a state as bytes.

        Raises StateError: the state holds a value that cannot be encoded; the message names its type and place.
        """
        if _is_flat(state):
            return _pack((state, b"", b""))
        written = _Written()
        tree = self._plain(state, written, "state", 0)
        encoded = _pack((tree, written.arrays or b"", written.tensors or b""))
        if not self._proven >= written.classes:
            self._prove(encoded, written.classes)
        return encoded

    def encode_in_parts(self, state: Any) -> list[Buffer]:
        """Return a state in parts: its large arrays and tensors, which may not be copies, and before them all the rest.

        Raises StateError: as `encode`.
        """
        written = _Written()
        large: list[Buffer] = []

        def placed(raw: Any) -> Any:
            if len(raw) < _LARGE_PART:
                return raw
            large.append(raw)
            return msgpack.ExtType(_Kind.PART, _pack(len(large)))

        tree = self._plain(state, written, "state", 0)
        rest = _pack((tree, list(map(placed, written.arrays)), list(map(placed, written.tensors))))
        parts = [rest, *large]
        if not self._proven >= written.classes:
            self._prove(rest, written.classes, [[part] for part in parts])
        return parts

    def _prove(self, encoded: bytes, classes: set[type], parts: Parts = ()) -> None:
        """Make sure that a state with classes that are written for the first time can be read again."""
        try:
            self.decode(encoded, parts)
        except Exception as error:  # a decoder is the handler's code
            if device_failure(error) is not None:
                return
            names = ", ".join(sorted(map(_name_of, classes - self._proven)))
            raise StateError(f"what is stored of {names} cannot be read again: {error}") from error
        self._proven |= classes

    def decode(self, data: bytes, parts: Parts = ()) -> Any:
        """Return the state that was encoded as ``data``.

        Args:
            data: All of it, or its first part.
            parts: All parts, each in pieces, if it was encoded in parts.

        Raises StateError: the bytes are no encoded state, or hold an instance of a class without a decoder.
        """
        try:
            marked: list[_Marked] = []
            tree, arrays, tensors = _unpacked(data, marked, parts)
            if not marked:
                return tree
            stored = _Stored(arrays, tensors, self._decoders, self._gpu_id)
            with self._handlers_stream(tensors):
                return stored.restored(tree, 0)
        except StateError:
            raise
        except _UNREADABLE as error:
            raise StateError(f"stored bytes are no state: {error or type(error).__name__}") from error

    def _handlers_stream(self, tensors: Any) -> AbstractContextManager[None]:
        """Return a context in which tensors are restored on the GPU stream that the handler computes on.

        CUDA's memory belongs to the stream on which it was allocated: torch gives it to other tensors once it is free,
        although kernels of another stream may still use it.
        """
        if self._gpu_id is None or not tensors:
            return nullcontext()
        import torch

        from ts.jobs.device_copies import computing_on, stream_in_use

        return computing_on(stream_in_use(torch.device("cuda", self._gpu_id)))

    def _plain(self, value: Any, written: _Written, place: str, depth: int) -> Any:
        """Return the form of ``value`` that msgpack can write; C code checks containers that hold only scalars."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if depth >= MAX_DEPTH:
            raise StateError(f"the state is nested more than {MAX_DEPTH} deep, or contains itself: {place[:80]}…")
        if kind is list:
            return self._plain_items(value, written, place, depth)
        if kind is dict and _SCALARS.issuperset(map(type, value)):
            if _SCALARS.issuperset(map(type, value.values())):
                return value
            return {key: self._plain(item, written, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
        if kind in _SEQUENCES:
            return msgpack.ExtType(_SEQUENCES[kind], _pack(self._plain_items(list(value), written, place, depth)))
        if kind is bytearray:
            return msgpack.ExtType(_Kind.BYTEARRAY, bytes(value))
        code, content = self._marked(value, kind, written, place, depth)
        return msgpack.ExtType(code, _pack(content))

    def _plain_items(self, items: list[Any], written: _Written, place: str, depth: int) -> list[Any]:
        if _SCALARS.issuperset(map(type, items)):
            return items
        return [self._plain(item, written, f"{place}[{index}]", depth + 1) for index, item in enumerate(items)]

    def _marked(self, value: Any, kind: type, written: _Written, place: str, depth: int) -> tuple[int, Any]:
        """Return the extension type, and its content, of a value that msgpack cannot distinguish or does not know."""
        # Keys that are no scalars, msgpack could write, but not read all of them.
        if kind is dict or kind is OrderedDict:
            pairs = [item for pair in value.items() for item in pair]
            return _Kind.PAIRS, [kind is OrderedDict, self._plain_items(pairs, written, place, depth)]
        if kind in self._encoders:
            written.classes.add(kind)
            name, encode = self._encoders[kind]
            return _Kind.CUSTOM, [name, self._plain(encode(value), written, f"{place} ({kind.__name__})", depth + 1)]
        if kind is complex:
            return _Kind.COMPLEX, [value.real, value.imag]
        if kind is deque:
            return _Kind.DEQUE, [value.maxlen, self._plain_items(list(value), written, place, depth)]
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._marked_tensor(value, written, place, depth)
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return self._marked_array(value, written, place, depth)
        raise StateError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored: keep plain values, numpy"
            " arrays and torch tensors, or pass encoders={the class: (encode, decode)} to SequenceCache"
        )

    def _marked_array(self, value: Any, written: _Written, place: str, depth: int) -> tuple[int, Any]:
        import numpy

        from ts.sequence.array_bytes import is_plain, parts_of, special_parts

        if not is_plain(value):
            special = special_parts(value, place)
            return _Kind.SPECIAL_ARRAY, self._plain_items(special, written, place, depth)
        raw, name, shape = parts_of(value, place)
        return _Kind.ARRAY, [_add(written.arrays, raw), isinstance(value, numpy.generic), name, shape]

    def _marked_tensor(self, value: Any, written: _Written, place: str, depth: int) -> tuple[int, Any]:
        from ts.sequence.tensor_bytes import is_plain, parts_of, special_parts

        if not is_plain(value):
            special = special_parts(value, place)
            return _Kind.SPECIAL_TENSOR, self._plain_items(special, written, place, depth)
        raw, device, name, shape = parts_of(value)
        return _Kind.TENSOR, [_add(written.tensors, raw), device, name, shape]


class _Stored:
    """An encoded state while it is restored.

    Args:
        arrays, tensors: The second and third part of the state.
    """

    def __init__(self, arrays: Any, tensors: Any, decoders: Mapping[str, Decoder], gpu_id: int | None) -> None:
        self._arrays = _safetensors("numpy").load(arrays) if arrays and type(arrays) is bytes else arrays
        self._tensors = _safetensors("torch").load(tensors) if tensors and type(tensors) is bytes else tensors
        self._decoders = decoders
        self._gpu_id = gpu_id

    def restored(self, value: Any, depth: int) -> Any:
        """Return what msgpack has read, with all that is marked in it restored."""
        if depth > _MAX_READ_DEPTH:
            raise StateError(f"the stored state is nested more than {_MAX_READ_DEPTH} deep")
        kind = type(value)
        if kind is _Marked:
            return self._of_kind(value.code, value.content, depth)
        if kind is list:
            return self._items(value, depth)
        if kind is dict:
            for key, item in value.items():
                if type(item) in _UNRESTORED:
                    value[key] = self.restored(item, depth + 1)
        return value

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        for index, item in enumerate(items):
            if type(item) in _UNRESTORED:
                items[index] = self.restored(item, depth + 1)
        return items

    def _of_kind(self, code: int, content: bytes, depth: int) -> Any:
        value = _unpacked(content, [])
        match code:
            case _Kind.TUPLE | _Kind.SET | _Kind.FROZENSET:
                return _TYPES[code](self._items(value, depth))
            case _Kind.COMPLEX:
                return complex(*value)
            case _Kind.DEQUE:
                return deque(self._items(value[1], depth), value[0])
            case _Kind.PAIRS:
                items = self._items(value[1], depth)
                pairs = zip(items[::2], items[1::2], strict=True)
                return OrderedDict(pairs) if value[0] else dict(pairs)
            case _Kind.CUSTOM:
                name, plain = value
                return self._custom(name, plain, depth)
            case _Kind.ARRAY:
                return self._array(*value)
            case _Kind.TENSOR:
                return self._tensor(*value)
            case _Kind.SPECIAL_ARRAY:
                from ts.sequence.array_bytes import special_of as special_array

                return special_array(*self._items(value, depth))
            case _Kind.SPECIAL_TENSOR:
                from ts.sequence.tensor_bytes import special_of as special_tensor

                return special_tensor(*self._items(value, depth))
        raise StateError(f"stored bytes hold a value of unknown kind {code}")

    def _custom(self, name: str, value: Any, depth: int) -> Any:
        if name not in self._decoders:
            known = ", ".join(self._decoders) or "none"
            raise StateError(f"the state holds a {name}, for which there is no decoder here; there are: {known}")
        return self._decoders[name](self.restored(value, depth + 1))

    def _array(self, place: Any, is_scalar: bool, name: str | None = None, shape: Sequence[int] = ()) -> Any:
        """Return an array; it has no type of its own here if an earlier release has written it."""
        array = self._arrays[place]
        if name is not None:
            from ts.sequence.array_bytes import ArrayParts, array_of

            array = array_of(ArrayParts(array, name, shape))
        return array[()] if is_scalar else array

    def _tensor(self, place: Any, device: str, name: str | None = None, shape: Sequence[int] = ()) -> Any:
        """Return a tensor; it has no type of its own here if an earlier release has written it."""
        tensor = self._tensors[place]
        if name is not None:
            from ts.sequence.tensor_bytes import TensorParts, tensor_of

            return tensor_of(TensorParts(tensor, device, name, shape), self._gpu_id)
        return tensor if device == "cpu" or self._gpu_id is None else tensor.to(f"{device}:{self._gpu_id}")


def _unpacked(data: bytes, marked: list[_Marked], parts: Parts = ()) -> Any:
    """Return what msgpack reads, with its ``parts`` in their places; add to ``marked`` what is yet to be restored."""

    def mark(code: int, content: bytes) -> Any:
        if code == _Kind.BYTEARRAY:
            return bytearray(content)
        if code == _Kind.INTEGER:  # which may be a key
            return int.from_bytes(content, "big", signed=True)
        if code == _Kind.PART:
            return parts[msgpack.unpackb(content)]
        value = _Marked(code, content)
        marked.append(value)
        return value

    return unpack(data, strict_map_key=False, ext_hook=mark, unicode_errors="surrogatepass")


def _safetensors(kind: str) -> Any:
    try:
        return importlib.import_module(f"safetensors.{kind}")
    except ModuleNotFoundError as error:
        raise StateError(
            f"an earlier release has stored the {kind} values of this state in safetensors' format; {error.name} is"
            " missing for that: install torchserve-py[safetensors]"
        ) from error
