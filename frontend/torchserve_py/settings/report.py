"""Settings for people: what ``--print-config`` prints, and the rows of the tables in docs/configuration.md."""

from collections.abc import Iterator
from typing import Any

from torchserve_py.settings.properties import written
from torchserve_py.settings.resolution import Resolution
from torchserve_py.settings.schemas.document import default_text, row
from torchserve_py.settings.table import SOURCES, Settings

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
    return shown(name, effective.value), effective.origin


def documented(name: str) -> str:
    """Return the row of a setting in the tables of docs/configuration.md."""
    field, source = Settings.model_fields[name], SOURCES[name]
    default = default_text(field)
    if default == "none" and field.default is not None:
        default = f"`{written(field.default)}`"
    ways = ", ".join(f"`{way}`" for way in (source.env, source.flag) if way is not None)
    return row(f"`{name}`", source.kind.words, default, ways or "–", field.description or "")


def shown(name: str, value: Any) -> str:
    """Return the value of a setting for people: no secret, and a default that is no value in parentheses."""
    if SOURCES[name].secret:
        return "********"
    return written(value) or f"({default_text(Settings.model_fields[name]) if value is None else 'none'})"
