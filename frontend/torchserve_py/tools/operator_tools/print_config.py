"""What users write, for people: what ``--print-config`` prints, and the rows of the tables in docs/."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from torchserve_py.base.settings.flags import Flags
from torchserve_py.base.settings.properties import written
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.schemas.schema import Schema, expected
from torchserve_py.base.settings.server_settings import server_settings, sources
from torchserve_py.base.settings.table import Source
from torchserve_py.base.terminal import tell
from torchserve_py.base.url_secrets import without_secrets

_WIDEST_COLUMN = 48


def print_report(flags: Flags) -> int:
    """Print every setting; return the exit status, 1 if the server would not start."""
    resolution = Resolution(flags, os.environ, Path.cwd())
    tell("\n".join(report(resolution)))
    return int(bool(resolution.errors))


def report(resolution: Resolution) -> Iterator[str]:
    """Yield the lines: three aligned columns, then what is doubtful, then what is wrong."""
    if resolution.effective:
        yield from _table(resolution)
    for warning in resolution.warnings:
        yield f"Warning: {warning}"
    yield from resolution.errors


def _table(resolution: Resolution) -> Iterator[str]:
    rows = []
    for name in sources():
        effective = resolution.effective.get(name)
        if effective is None:
            rows.append((name, "(missing or wrong, see below)", ""))
        else:
            rows.append((name, shown(name, effective.value), effective.origin))
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= _WIDEST_COLUMN)
    for name, value, origin in rows:
        yield f"{name:{name_width}}  {value:{value_width}}  {origin}".rstrip()


def documented(name: str) -> str:
    """Return the row of a setting in the tables of docs/configuration.md."""
    field, source = server_settings().model_fields[name], sources()[name]
    default = _default_text(field)
    if default == "none" and field.default is not None:
        default = f"`{written(field.default)}`"
    meaning = field.description or ""
    if ways := ", ".join(_further_ways(name, source)):
        meaning += f" ({ways})"
    return _row(f"`{name}`", _brief(source.kind.words), default, meaning)


def _further_ways(name: str, source: Source) -> Iterator[str]:
    """Yield how else than in the file a setting is given, as far as its name does not tell: a variable, a flag."""
    if source.env is None:
        yield "no variable"
    elif source.env != f"TS_{name.upper()}":
        yield f"`{source.env}`"
    if source.flag:
        yield f"`{source.flag}`"


def shown(name: str, value: Any) -> str:
    """Return the value of a setting for people: no secret, and a default that is no value in parentheses."""
    if sources()[name].secret:
        return "********"
    return (
        without_secrets(written(value))
        or f"({_default_text(server_settings().model_fields[name]) if value is None else 'none'})"
    )


def table(schema: type[Schema], *, defaults: bool = True) -> Iterator[str]:
    """Yield a row for each key: its name, what it must be, its default (where ``defaults``) and its meaning."""
    for name, field in schema.model_fields.items():
        words = expected(field)
        if words is not None:
            shown = [_default_text(field)] if defaults else []
            yield _row(f"`{field.alias or name}`", _brief(words), *shown, field.description or "")


def _brief(words: str) -> str:
    """Return what a value must be in the words of a table, of which the document says how lists are written."""
    brief = re.sub("^an? | with commas between them| that is not empty", "", words)
    return re.sub(r"^integer from (\d+) \((\w+)\)$", r"\2, from \1", brief.replace("true or false", "boolean"))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default_text(field: FieldInfo) -> str:
    """Return the default of a key in words."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return str(extra.get("x-default", "mandatory" if field.is_required() else "none"))
