"""A schema as a table in Markdown, and as the JSON Schema that editors complete with."""

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from torchserve_py.settings.schemas.schema import Schema, expected


def json_schema(schema: type[Schema], title: str) -> dict[str, Any]:
    """Return the JSON Schema of a file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.model_json_schema(), "title": title}


def table(schema: type[Schema], *, defaults: bool = True) -> Iterator[str]:
    """Yield a row for each key: its name, what it must be, its default (where ``defaults``) and its meaning."""
    for name, field in schema.model_fields.items():
        words = expected(field)
        if words is not None:
            shown = [default_text(field)] if defaults else []
            yield row(f"`{field.alias or name}`", words, *shown, field.description or "")


def row(*cells: str) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default_text(field: FieldInfo) -> str:
    """Return the default of a key in words."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return str(extra.get("x-default", "mandatory" if field.is_required() else "none"))
