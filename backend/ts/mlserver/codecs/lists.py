"""Data that are a list of texts or bytes, or a single one that stands for a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ListElement = bytes | str


def is_list_of(payload: Any, instance_type: type[Any]) -> bool:
    """Return whether ``payload`` is a list with elements of that type only."""
    return isinstance(payload, list) and all(isinstance(element, instance_type) for element in payload)


def as_list(payload: Any) -> Iterator[Any]:
    """Iterate over a list; over anything else as over a list of that one element."""
    if isinstance(payload, list):
        yield from payload
    else:
        yield payload
