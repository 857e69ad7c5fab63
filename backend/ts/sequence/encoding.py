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
from typing import Any, Self

import msgpack

#: Turns an instance of a user's class into plain values.
Encoder = Callable[[Any], Any]
#: Restores the instance from these plain values.
Decoder = Callable[[Any], Any]

_TUPLE, _SET, _FROZENSET, _INTEGER, _BYTEARRAY, _COMPLEX, _DEQUE, _ORDERED, _CUSTOM, _ARRAY, _TENSOR = range(1, 12)

_SCALARS = frozenset((int, float, str, bool, bytes, type(None)))
_MAX_DEPTH = 200


def _large_integer(value: Any) -> msgpack.ExtType:
    """Encode an integer of more than 64 bits, the only scalar that msgpack cannot write itself."""
    return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_pack = msgpack.Packer(default=_large_integer).pack


class StateError(ValueError):
    """A state that cannot be written as bytes, or bytes that cannot be read as a state."""


class _Marked:
    """An extension value that was read and not looked into yet."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


class _Tensors:
    """The arrays and tensors of one state, by number; safetensors has a file for each kind."""

    def __init__(self, arrays: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> None:
        self.arrays: dict[str, Any] = dict(arrays or {})
        self.tensors: dict[str, Any] = dict(tensors or {})
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

        from ts.torch_handler.device_copies import to_host

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
        if type(state) in _SCALARS:
            return bytes(_pack((state, b"", b"")))
        tensors = _Tensors()
        tree = self._plain(state, tensors, "state", 0)
        return bytes(_pack((tree, *tensors.files())))

    def decode(self, data: bytes) -> Any:
        """Return the state that was encoded as ``data``.

        Raises StateError: the bytes are no encoded state, or hold an instance of a class without a decoder.
        """
        try:
            tree, arrays, tensors = msgpack.unpackb(data, strict_map_key=False, ext_hook=_Marked)
            return self._value(tree, _Tensors.read(arrays, tensors))
        except StateError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise StateError(f"stored bytes are no state: {error or type(error).__name__}") from error

    # Writing

    def _plain(self, value: Any, tensors: _Tensors, place: str, depth: int) -> Any:
        """Return the form of ``value`` that msgpack can write; C code checks containers that hold only scalars."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if depth > _MAX_DEPTH:
            raise StateError(f"the state is nested more than {_MAX_DEPTH} deep, or contains itself: {place[:80]}…")
        if kind is list:
            return self._plain_items(value, tensors, place, depth)
        if kind is dict:
            return self._plain_map(value, tensors, place, depth)
        if kind is tuple or kind is set or kind is frozenset:
            code = _TUPLE if kind is tuple else _SET if kind is set else _FROZENSET
            return msgpack.ExtType(code, _pack(self._plain_items(list(value), tensors, place, depth)))
        return self._special(value, kind, tensors, place, depth)

    def _plain_items(self, items: list[Any], tensors: _Tensors, place: str, depth: int) -> list[Any]:
        if _SCALARS.issuperset(map(type, items)):
            return items
        return [self._plain(item, tensors, f"{place}[{index}]", depth + 1) for index, item in enumerate(items)]

    def _plain_map(self, items: Mapping[Any, Any], tensors: _Tensors, place: str, depth: int) -> Any:
        if not _SCALARS.issuperset(map(type, items)):
            # msgpack could write other keys, but would not read those that are lists and dicts for it.
            pairs = [item for pair in items.items() for item in pair]
            return msgpack.ExtType(_ORDERED, _pack([False, self._plain_items(pairs, tensors, place, depth)]))
        if _SCALARS.issuperset(map(type, items.values())):
            return items
        return {key: self._plain(item, tensors, f"{place}[{key!r}]", depth + 1) for key, item in items.items()}

    def _special(self, value: Any, kind: type, tensors: _Tensors, place: str, depth: int) -> Any:
        if kind in self._encoders:
            name, encode = self._encoders[kind]
            plain = self._plain(encode(value), tensors, f"{place} ({kind.__name__})", depth + 1)
            return msgpack.ExtType(_CUSTOM, _pack([name, plain]))
        if kind is bytearray:
            return msgpack.ExtType(_BYTEARRAY, bytes(value))
        if kind is complex:
            return msgpack.ExtType(_COMPLEX, _pack([value.real, value.imag]))
        if kind is deque:
            items = self._plain_items(list(value), tensors, place, depth)
            return msgpack.ExtType(_DEQUE, _pack([value.maxlen, items]))
        if kind is OrderedDict:
            pairs = [item for pair in value.items() for item in pair]
            return msgpack.ExtType(_ORDERED, _pack([True, self._plain_items(pairs, tensors, place, depth)]))
        return self._tensor(value, tensors, place)

    def _tensor(self, value: Any, tensors: _Tensors, place: str) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return msgpack.ExtType(_TENSOR, _pack([tensors.add_tensor(value, place), value.device.type]))
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            return msgpack.ExtType(_ARRAY, _pack([tensors.add_array(value, place), isinstance(value, numpy.generic)]))
        raise StateError(
            f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be stored: keep plain"
            " values, numpy arrays and torch tensors, or pass encoders={the class: (encode, decode)} to SequenceCache"
        )

    # Reading

    def _value(self, plain: Any, tensors: _Tensors) -> Any:
        kind = type(plain)
        if kind is list:
            return [self._value(item, tensors) for item in plain]
        if kind is dict:
            return {  # a key is marked if it is an integer of more than 64 bits
                self._value(key, tensors) if type(key) is _Marked else key: self._value(item, tensors)
                for key, item in plain.items()
            }
        if kind is not _Marked:
            return plain
        if plain.code == _BYTEARRAY:
            return bytearray(plain.data)
        if plain.code == _INTEGER:
            return int.from_bytes(plain.data, "big", signed=True)
        content = msgpack.unpackb(plain.data, strict_map_key=False, ext_hook=_Marked)
        if plain.code in {_ARRAY, _TENSOR}:
            number, detail = content
            if plain.code == _TENSOR:
                return self._placed(tensors.tensors[number], detail)
            return tensors.arrays[number][()] if detail else tensors.arrays[number]
        return self._container(plain.code, content, tensors)

    def _container(self, code: int, content: Any, tensors: _Tensors) -> Any:
        match code:
            case 1 | 2 | 3:
                values = (self._value(item, tensors) for item in content)
                return tuple(values) if code == _TUPLE else set(values) if code == _SET else frozenset(values)
            case 6:
                return complex(*content)
            case 7:
                return deque((self._value(item, tensors) for item in content[1]), content[0])
            case 8:
                ordered, flat = content
                keys_and_values = [self._value(item, tensors) for item in flat]
                pairs = zip(keys_and_values[::2], keys_and_values[1::2], strict=True)
                return OrderedDict(pairs) if ordered else dict(pairs)
            case 9:
                name, inner = content
                if name not in self._decoders:
                    known = ", ".join(self._decoders) or "none"
                    raise StateError(
                        f"the state holds a {name}, for which there is no decoder here; there are: {known}"
                    )
                return self._decoders[name](self._value(inner, tensors))
        raise StateError(f"stored bytes hold a value of unknown kind {code}")

    def _placed(self, tensor: Any, device: str) -> Any:
        if device == "cpu" or self._gpu_id is None:
            return tensor
        return tensor.to(f"{device}:{self._gpu_id}")
