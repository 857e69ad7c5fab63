"""Examples of values that a JSON Schema of pydantic's accepts."""

from collections.abc import Mapping
from typing import Any, Final

#: There is no example; None is one.
NO_EXAMPLE: Final = object()
#: The text where nothing is known of what a model takes.
_TEXT: Final = "hello"
_SIMPLE: Final = {"string": _TEXT, "integer": 1, "number": 0.5, "boolean": True, "null": None}
_FORMATS: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "duration": "PT1S",
    "uuid": "6f1e4d1c-5d5b-4c58-9e51-4a3c4e3a8d11",
    "email": "ada@example.org",
    "uri": "https://example.org/",
    "ipv4": "192.0.2.1",
}
_MAX_DEPTH: Final = 8


def example_of(schema: Mapping[str, Any], whole: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Return a value that a schema allows; members with a default are left out.

    ``whole`` is the schema with the definitions, and `schema` lies in ``depth`` others.
    """
    whole = schema if whole is None else whole
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return example_of(definition(whole, schema), whole, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], whole, depth + 1)
    kind = schema.get("type")
    if kind == "array":
        firsts = [example_of(each, whole, depth + 1) for each in schema.get("prefixItems", ())]
        items = schema.get("items")
        item = 0.5 if items == {} else example_of(items or {}, whole, depth + 1)
        least = max(0 if firsts else 1, schema.get("minItems", 0) - len(firsts))
        return [*firsts, *[item] * least]
    if kind == "object":
        needed, members = schema.get("required", ()), schema.get("properties", {})
        return {name: example_of(members.get(name, {}), whole, depth + 1) for name in needed}
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "string":
        return _text(schema)
    return _SIMPLE.get(str(kind), _TEXT)


def definition(whole: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema that a part of another one names; an empty one if it names none."""
    found: Mapping[str, Any] = whole.get("$defs", {}).get(str(part.get("$ref")).rpartition("/")[2], {})
    return found


def _number(schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf") or 1
    if "minimum" in schema:
        low = schema["minimum"]
        return low if "multipleOf" not in schema else -(-low // step) * step
    if "exclusiveMinimum" in schema:
        low, high = schema["exclusiveMinimum"], schema.get("maximum", schema.get("exclusiveMaximum"))
        if schema["type"] == "number" and high is not None:
            return (low + high) / 2
        return (low // step + 1) * step
    if "maximum" in schema:
        return schema["maximum"] if "multipleOf" not in schema else schema["maximum"] // step * step
    if "exclusiveMaximum" in schema:
        return schema["exclusiveMaximum"] - step
    return step if "multipleOf" in schema else _SIMPLE[schema["type"]]


def _text(schema: Mapping[str, Any]) -> str:
    text: str = _FORMATS.get(schema.get("format", ""), _TEXT)
    text += "." * (schema.get("minLength", 0) - len(text))
    return text[: schema.get("maxLength")]
