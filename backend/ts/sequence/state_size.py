"""How many bytes a state holds, counted as far as a limit."""

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

_CONTAINERS: Final = (list, tuple, set, frozenset, deque)
_LEAVES: Final = frozenset((int, float, str, bool, bytes, bytearray, complex, type(None)))
#: A class with this attribute counts what its instances hold by itself.
COUNTED_ELSEWHERE: Final = "is_counted_elsewhere"


def size_of(state: Any, limit: int) -> int:
    """Return about how many bytes a state holds, its tensors and arrays included; some number above ``limit`` if more.

    What occurs twice counts once, as does memory that several tensors or arrays share: all of it, since it cannot be
    freed before. Of a class that is not known, the attributes count.
    """
    size = 0
    seen: set[Any] = set()
    rest = [state]
    while rest and size <= limit:
        value = rest.pop()
        kind = type(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if kind in _LEAVES:
            continue
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            size += _storage_size(value, seen)
            rest += _tensors_in(value)
        elif numpy is not None and isinstance(value, numpy.ndarray):
            rest += _parts_of_array(value)
        rest += _parts(value)
    return size


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values(), *_attributes(value))
    if isinstance(value, _CONTAINERS):
        return (*value, *_attributes(value))
    if isinstance(value, memoryview):
        return (value.obj,)
    return () if getattr(type(value), COUNTED_ELSEWHERE, False) else _attributes(value)


def _attributes(value: Any) -> list[Any]:
    if isinstance(value, type):
        return []
    kind: Any = type(value)
    found = [getattr(value, name) for name in _slots(kind) if hasattr(value, name)]
    attributes = getattr(value, "__dict__", None)
    return [*found, *attributes.values()] if isinstance(attributes, dict) else found


@lru_cache(256)
def _slots(kind: Any) -> tuple[str, ...]:
    """Return the names of the attributes for which instances have a fixed place."""
    names: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{each.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _parts_of_array(array: Any) -> list[Any]:
    """Return what an array refers to: the array or buffer that it is a view of, and the objects in it."""
    objects = array.ravel().tolist() if array.dtype.hasobject else []
    return [*objects, array.base] if array.base is not None else objects


def _storage_size(tensor: Any, seen: set[Any]) -> int:
    """Return the size of the memory of a dense tensor, unless it is among what was seen."""
    try:
        storage = tensor.untyped_storage()
        place = ("storage", storage.data_ptr())
    except (RuntimeError, NotImplementedError):  # it has none, as those that are sparse
        return 0
    if place in seen:
        return 0
    seen.add(place)
    return int(storage.nbytes())


def _tensors_in(tensor: Any) -> list[Any]:
    """Return the tensors that a tensor consists of besides its own memory."""
    names = _PARTS_BY_LAYOUT.get(str(tensor.layout), ())
    detached = tensor.detach() if names else tensor
    gradient = [] if tensor.grad_fn is not None or tensor.grad is None else [tensor.grad]
    return [*(getattr(detached, name)() for name in names), *gradient]


_BY_ROW: Final = ("crow_indices", "col_indices", "values")
_BY_COLUMN: Final = ("ccol_indices", "row_indices", "values")
_PARTS_BY_LAYOUT: Final = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": _BY_ROW,
    "torch.sparse_bsr": _BY_ROW,
    "torch.sparse_csc": _BY_COLUMN,
    "torch.sparse_bsc": _BY_COLUMN,
}
