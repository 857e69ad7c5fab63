"""JSON of what a model's code returns, for every contract: numbers of array libraries, and NaN, which JSON lacks.

Numbers and arrays of numpy, torch and all others that have ``tolist`` are written as numbers and lists; NaN and
infinities as null.
"""

import json
import math
from collections.abc import Callable
from typing import Any


def array_value(value: Any) -> Any:
    """Return a library's number, array or tensor as Python's numbers. Raises TypeError: it is none of these."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def json_text(value: Any, other: Callable[[Any], Any] = array_value, **layout: Any) -> str:
    """Return the JSON text of a value.

    Args:
        other: Returns what stands for a value that is not of JSON's types, or raises TypeError.
        layout: ``indent`` and ``separators`` of `json.dumps`.

    Raises:
        TypeError: A value in it has no form in JSON.
        ValueError, RecursionError: It holds itself, or is nested too deeply.
    """
    try:
        return json.dumps(value, allow_nan=False, default=other, **layout)
    except (TypeError, ValueError):
        # A number that JSON does not know, or a key that is one of numpy's: rare enough to try the fast way first.
        return json.dumps(plain(value, other), allow_nan=False, **layout)


def plain(value: Any, other: Callable[[Any], Any] = array_value) -> Any:
    """Return ``value`` as dicts, lists, text, numbers and null (for NaN). Raises TypeError: JSON has no form for it."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {_plain_key(key, other): plain(member, other) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member, other) for member in value]
    return plain(other(value), other)


def _plain_key(key: Any, other: Callable[[Any], Any]) -> Any:
    """Return a key that Python's encoder knows, which writes it as text."""
    if isinstance(key, float):
        return float(key) if math.isfinite(key) else json.dumps(key)
    return key if key is None or isinstance(key, str | int) else other(key)
