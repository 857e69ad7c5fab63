"""Schemas of requests' bodies for the OpenAPI documents, from the pydantic models that read these bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import BaseModel

_DEFINITIONS: Final = "#/$defs/"
_NULL: Final = {"type": "null"}
#: In OpenAPI 3.0 a bound is a number, and whether it is excluded a truth value beside it.
_EXCLUDED: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
#: Titles are Python's names; definitions stand where they are used.
_LEFT_OUT: Final = frozenset(("title", "$defs"))


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of the JSON that a model reads, as OpenAPI 3.0 has it: complete in itself."""
    schema = model.model_json_schema()
    return _of_openapi(schema, schema.get("$defs", {}))


def _of_openapi(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _of_openapi(definitions[schema["$ref"].removeprefix(_DEFINITIONS)], definitions)
    if _NULL in schema.get("anyOf", ()):
        (other,) = (each for each in schema["anyOf"] if each != _NULL)
        return _of_openapi(other, definitions)
    made = {key: value for key, value in schema.items() if key not in _LEFT_OUT}
    for excluded, bound in _EXCLUDED:
        if excluded in made:
            made |= {bound: made[excluded], excluded: True}
    if "description" in made:
        made["description"] = made["description"].partition("\n")[0]
    if "properties" in made:
        made["properties"] = {name: _of_openapi(each, definitions) for name, each in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), Mapping):
            made[key] = _of_openapi(made[key], definitions)
    return made
