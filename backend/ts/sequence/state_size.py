"""How many bytes a state holds, counted as far as a limit."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

_CONTAINERS: Final = (list, tuple, set, frozenset)


def size_of(state: Any, limit: int) -> int:
    """Return about how many bytes a state holds, its tensors and arrays included; some number above ``limit`` if more.

    What occurs twice counts once. Of a class that is not known, the attributes count.
    """
    size = 0
    seen: set[int] = set()
    rest = [state]
    while rest and size <= limit:
        value = rest.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        size += _own_size(value)
        rest.extend(_parts(value))
    return size


def _own_size(value: Any) -> int:
    buffer = getattr(value, "nbytes", None)  # of numpy's arrays and torch's tensors
    return sys.getsizeof(value) + (buffer if isinstance(buffer, int) else 0)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, _CONTAINERS):
        return value
    attributes = getattr(value, "__dict__", None)
    return attributes.values() if isinstance(attributes, dict) else ()
