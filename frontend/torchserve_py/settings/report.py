"""What ``--print-config`` prints: every setting, its effective value and where that came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from torchserve_py.settings.model_spec import ModelSpec
from torchserve_py.settings.resolution import Resolution
from torchserve_py.settings.table import SOURCES

_MASK = "********"
_WIDEST_COLUMN = 48


def report(resolution: Resolution) -> Iterator[str]:
    """Yield the lines: three aligned columns, then what is doubtful, then what is wrong."""
    if resolution.effective:
        yield from _table(resolution)
    for warning in resolution.warnings:
        yield f"Warning: {warning}"
    yield from resolution.errors


def _table(resolution: Resolution) -> Iterator[str]:
    rows = [(name, *_cells(name, resolution)) for name in SOURCES]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= _WIDEST_COLUMN)
    for name, value, origin in rows:
        yield f"{name:{name_width}}  {value:{value_width}}  {origin}".rstrip()


def _cells(name: str, resolution: Resolution) -> tuple[str, str]:
    effective = resolution.effective.get(name)
    if effective is None:
        return "(missing or wrong, see below)", ""
    value = _MASK if SOURCES[name].secret else show(effective.value, SOURCES[name].default_text)
    return value, effective.origin


def show(value: Any, nothing: str | None = None) -> str:
    """Return ``value`` as it would stand in config.properties; for None, ``nothing`` in parentheses."""
    if value is None:
        return f"({nothing or 'none'})"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, ModelSpec):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(map(show, value)) or "(none)"
    if isinstance(value, dict):
        return json.dumps(value) if value else "(none)"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
