"""The keys of a configuration file that the server reads: what each may hold, and what is said of one that does not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """A key that the server reads. `read` turns its value into the attribute's, or raises ValueError(what is right)."""

    name: str
    attribute: str
    read: Callable[[object], object]


def integer(minimum: int, maximum: int = MAX_INT) -> Callable[[object], object]:
    """Reads an integer within bounds."""
    bounds = f"an integer from {minimum}" + (f" to {maximum}" if maximum < MAX_INT else "")

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError(bounds)
        return value

    return read


def boolean(value: object) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def text(value: object) -> str:
    """Reads a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def choice(*choices: str) -> Callable[[object], object]:
    """Reads one of some words, in whatever case."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError("one of " + ", ".join(choice or '""' for choice in choices))
        return value.lower()

    return read


def seconds(value: object) -> float:
    """Reads a time in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_INT:
        raise ValueError("a number of seconds, more than 0")
    return float(value)


def read_keys(
    values: Mapping[Any, Any], keys: tuple[Key, ...], parent: str, lines: Mapping[str, int], refused: dict[str, str]
) -> dict[str, Any]:
    """The attributes of the keys that are present (`null`: absent); `refused` gets the name and fault of the others."""
    attributes: dict[str, Any] = {}
    for key in keys:
        value = values.get(key.name)
        if value is None:
            continue
        name = parent + key.name
        try:
            attributes[key.attribute] = key.read(value)
        except ValueError as error:
            line = lines.get(parent.rstrip(".") or key.name)
            refused[name] = f"{f'line {line}: ' if line else ''}{name} is {_shown(value)}, it must be {error}"
    return attributes


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
