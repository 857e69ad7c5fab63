"""A schema as a table in Markdown, and as the JSON Schema that editors complete with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchserve_py.settings.schemas.schema import Schema


def json_schema(schema: type[Schema], title: str) -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.model_json_schema(), "title": title}


def table(schema: type[Schema], *, defaults: bool = True) -> Iterator[str]:
    """Yield a row for each key: its name, what it must be, its default (where ``defaults``) and its meaning."""
    for name, field in schema.model_fields.items():
        expected = next((each.words for each in field.metadata if hasattr(each, "words")), None)
        if expected is None:  # a map that is somebody else's
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        cells = [f"`{field.alias or name}`", expected, *([str(extra.get("x-default", "none"))] if defaults else [])]
        yield "| " + " | ".join([*cells, field.description or ""]) + " |"
