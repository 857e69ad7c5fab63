"""A handler's state as bytes and back: msgpack, with numpy arrays and torch tensors in safetensors' format.

No pickle: decoding a state never runs code. Types that msgpack cannot distinguish (tuples, sets, ``bytearray`` …) are
marked with extension types, so that decoding restores the original types. An encoded state is one msgpack array::

    [tree, arrays, tensors]     arrays, tensors: b"" or a safetensors file; the tree refers to its entries by number

numpy, torch and safetensors are imported only if a state holds their values.
"""

import importlib
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from functools import partial
from typing import Any, Final, Self

import msgpack

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


_SEQUENCES: Final[Mapping[type, int]] = {tuple: int(_Kind.TUPLE), set: int(_Kind.SET), frozenset: int(_Kind.FROZENSET)}
_SCALARS = frozenset((int, float, str, bool, bytes, type(None)))
_MAX_DEPTH = 200


def _large_integer(value: Any) -> msgpack.ExtType:
    """Encode an integer of more than 64 bits, the only scalar that msgpack cannot write itself."""
    return msgpack.ExtType(_Kind.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_pack = msgpack.Packer(default=_large_integer).pack


class StateError(ValueError):
    """A state that cannot be written as bytes, or bytes that cannot be read as a state."""


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class _Tensors:
    """The arrays and tensors of one state, by number; safetensors has a file for each kind."""

    def __init__(self, arrays: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> None:
        self.arrays: dict[str, Any] = {} if arrays is None else dict(arrays)
        self.tensors: dict[str, Any] = {} if tensors is None else dict(tensors)
        self._storages: set[int] = set()

    @classmethod
    def read(cls, arrays: bytes, tensors: bytes) -> Self:
        """Return what two files hold; an empty one stands for nothing."""
        return cls(
            _safetensors("numpy").load(arrays) if arrays else None,
            _safetensors("torch").load(tensors) if tensors else None,
        )

    def files(self) -> tuple[bytes, bytes]:
        """Return the two files."""
        return (
            _safetensors("numpy").save(self.arrays) if self.arrays else b"",
            _safetensors("torch").save(self.tensors) if self.tensors else b"",
        )

    def add_array(self, array: Any, place: str) -> str:
        """Take in a numpy array or scalar; return its number."""
        import numpy

        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise StateError(f"{place} is an array of type {array.dtype}, which safetensors' format does not know")
        little = numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        self.arrays[number := str(len(self.arrays))] = little.reshape(array.shape)
        return number

    def add_tensor(self, tensor: Any, place: str) -> str:
        """Take in a torch tensor; return its number."""
        import torch

        from ts.jobs.device_copies import to_host

        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
            raise StateError(
                f"{place} is a tensor of type {tensor.dtype} and layout {tensor.layout}, which safetensors' format does"
                " not know"
            )
        flat = to_host(tensor).contiguous()
        storage = flat.untyped_storage().data_ptr()
        if storage in self._storages:
            flat = flat.clone()  # safetensors refuses tensors that share memory
        self._storages.add(storage)
        self.tensors[number := str(len(self.tensors))] = flat
        return number


def _is_flat(value: Any) -> bool:
    """Whether a value is a scalar, or a list or dict of nothing else; C code finds that out."""
    kind = type(value)
    if kind is dict:
        return _SCALARS.issuperset(map(type, value)) and _SCALARS.issuperset(map(type, value.values()))
    return kind in _SCALARS or (kind is list and _SCALARS.issuperset(map(type, value)))


def _safetensors(kind: str) -> Any:
    try:
        return importlib.import_module(f"safetensors.{kind}")
    except ModuleNotFoundError as error:
        raise StateError(
            f"a state with {kind} values is stored in safetensors' format; {error.name} is missing for that: install"
            " torchserve-py[safetensors]"
        ) from error


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

    def encode(self, state: Any) -> bytes:
        """Return a state as bytes.

        Raises StateError: the state holds a value that cannot be encoded; the message names its type and place.
        """
        if _is_flat(state):
            return bytes(_pack((state, b"", b"")))
        tensors = _Tensors()
        tree = self._plain(state, tensors, "state", 0)
        return bytes(_pack((tree, *tensors.files())))

    def decode(self, data: bytes) -> Any:
        """Return the state that was encoded as ``data``.

        Raises StateError: the bytes are no encoded state, or hold an instance of a class without a decoder.
        """
        try:
            files = _parts(data, msgpack.ExtType)
            files.skip()  # the tree, which needs the entries of the files behind it
            tensors = _Tensors.read(files.unpack(), files.unpack())
            with self._handlers_stream(tensors):
                return _parts(data, partial(self._restored, tensors)).unpack()
        except StateError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise StateError(f"stored bytes are no state: {error or type(error).__name__}") from error

    def _handlers_stream(self, tensors: _Tensors) -> AbstractContextManager[None]:
        """Return a context in which tensors are restored on the GPU stream that the handler computes on.

        CUDA's memory belongs to the stream on which it was allocated: torch gives it to other tensors once it is free,
        although kernels of another stream may still use it.
        """
        if self._gpu_id is None or not tensors.tensors:
            return nullcontext()
        import torch

        from ts.jobs.device_copies import computing_on, stream_in_use

        return computing_on(stream_in_use(torch.device("cuda", self._gpu_id)))

    def _plain(self, value: Any, tensors: _Tensors, place: str, depth: int) -> Any:
        """Return the form of ``value`` that msgpack can write; C code checks containers that hold only scalars."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if depth > _MAX_DEPTH:
            raise StateError(f"the state is nested more than {_MAX_DEPTH} deep, or contains itself: {place[:80]}…")
        if kind is list:
            return self._plain_items(value, tensors, place, depth)
        if kind is dict and _SCALARS.issuperset(map(type, value)):
            if _SCALARS.issuperset(map(type, value.values())):
                return value
            return {key: self._plain(item, tensors, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
        if kind in _SEQUENCES:
            return msgpack.ExtType(_SEQUENCES[kind], _pack(self._plain_items(list(value), tensors, place, depth)))
        if kind is bytearray:
            return msgpack.ExtType(_Kind.BYTEARRAY, bytes(value))
        code, content = self._marked(value, kind, tensors, place, depth)
        return msgpack.ExtType(code, _pack(content))

    def _plain_items(self, items: list[Any], tensors: _Tensors, place: str, depth: int) -> list[Any]:
        if _SCALARS.issuperset(map(type, items)):
            return items
        return [self._plain(item, tensors, f"{place}[{index}]", depth + 1) for index, item in enumerate(items)]

    def _marked(self, value: Any, kind: type, tensors: _Tensors, place: str, depth: int) -> tuple[int, Any]:
        """Return the extension type, and its content, of a value that msgpack cannot distinguish or does not know."""
        # Keys that are no scalars, msgpack could write, but not read all of them.
        if kind is dict or kind is OrderedDict:
            pairs = [item for pair in value.items() for item in pair]
            return _Kind.PAIRS, [kind is OrderedDict, self._plain_items(pairs, tensors, place, depth)]
        if kind in self._encoders:
            name, encode = self._encoders[kind]
            return _Kind.CUSTOM, [name, self._plain(encode(value), tensors, f"{place} ({kind.__name__})", depth + 1)]
        if kind is complex:
            return _Kind.COMPLEX, [value.real, value.imag]
        if kind is deque:
            return _Kind.DEQUE, [value.maxlen, self._plain_items(list(value), tensors, place, depth)]
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _Kind.TENSOR, [tensors.add_tensor(value, place), value.device.type]
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return _Kind.ARRAY, [tensors.add_array(value, place), isinstance(value, numpy.generic)]
        raise StateError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored: keep plain values, numpy"
            " arrays and torch tensors, or pass encoders={the class: (encode, decode)} to SequenceCache"
        )

    def _restored(self, tensors: _Tensors, code: int, data: bytes) -> Any:
        """Return the value of an extension type."""
        if code == _Kind.BYTEARRAY:
            return bytearray(data)
        if code == _Kind.INTEGER:
            return int.from_bytes(data, "big", signed=True)
        content = msgpack.unpackb(data, strict_map_key=False, ext_hook=partial(self._restored, tensors))
        for kind, own in _SEQUENCES.items():
            if code == own:
                return kind(content)
        first, second = content
        match code:
            case _Kind.COMPLEX:
                return complex(first, second)
            case _Kind.DEQUE:
                return deque(second, first)
            case _Kind.PAIRS:
                pairs = zip(second[::2], second[1::2], strict=True)
                return OrderedDict(pairs) if first else dict(pairs)
            case _Kind.CUSTOM if first in self._decoders:
                return self._decoders[first](second)
            case _Kind.CUSTOM:
                known = ", ".join(self._decoders) or "none"
                raise StateError(f"the state holds a {first}, for which there is no decoder here; there are: {known}")
            case _Kind.ARRAY:
                return tensors.arrays[first][()] if second else tensors.arrays[first]
            case _Kind.TENSOR:
                on_device = second != "cpu" and self._gpu_id is not None
                return tensors.tensors[first].to(f"{second}:{self._gpu_id}") if on_device else tensors.tensors[first]
        raise StateError(f"stored bytes hold a value of unknown kind {code}")


def _parts(data: bytes, ext_hook: Callable[[int, bytes], Any]) -> Any:
    """Return an unpacker of the three parts of an encoded state."""
    parts = msgpack.Unpacker(max_buffer_size=len(data), strict_map_key=False, ext_hook=ext_hook)
    parts.feed(data)
    if parts.read_array_header() != 3:
        raise ValueError("they have another number of parts")
    return parts
