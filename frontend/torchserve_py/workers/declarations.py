"""What a worker declares of its model, checked when it arrives: doors look into it for other models' requests, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Values, each in lists and mappings counted, and characters of all texts.
MAX_VALUES: Final = 20_000
MAX_CHARACTERS: Final = 4 << 20
_MAX_DEPTH: Final = 64


def checked_declarations(declared: Any) -> Mapping[str, Any]:
    """Return the declarations of a worker if they are usable.

    Raises:
        ValueError: They are no mapping with texts as keys, or over a limit.
    """
    if not isinstance(declared, dict) or not all(isinstance(key, str) for key in declared):
        raise ValueError(f"its model declares a {type(declared).__name__}, which is no mapping with texts as keys")
    values = characters = 0
    level: list[Any] = [declared]
    for _ in range(_MAX_DEPTH):
        values += len(level)
        characters += sum(len(each) for each in level if isinstance(each, (str, bytes)))
        if values > MAX_VALUES or characters > MAX_CHARACTERS:
            raise ValueError(f"its model declares more than {MAX_VALUES} values or {MAX_CHARACTERS} characters")
        level = _inside(level)
        if not level:
            return declared
    raise ValueError(f"its model declares values in more than {_MAX_DEPTH} lists and mappings inside each other")


def _inside(level: list[Any]) -> list[Any]:
    """The values directly in the lists and mappings among these; not many more than are allowed."""
    inside: list[Any] = []
    for each in level:
        if isinstance(each, dict):
            inside += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple)):
            inside += each
        if len(inside) > MAX_VALUES:
            break
    return inside
