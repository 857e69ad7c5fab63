"""An example of what a model takes: from a JSON Schema, or from declared tensors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TEXT: Final = "hello"
_SIMPLE: Final = {"string": _TEXT, "integer": 1, "number": 0.5, "boolean": True, "null": None}
_MAX_DEPTH: Final = 8
#: More values than this are no example that a person would read.
_MAX_ELEMENTS: Final = 64


def example_of(schema: Mapping[str, Any], whole: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Return a value that a JSON Schema of pydantic's allows; members with a default are left out.

    Args:
        whole: The schema that `schema` is a part of, which has its definitions.
        depth: How many schemas it lies in.
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
        name = str(schema["$ref"]).rpartition("/")[2]
        return example_of(whole.get("$defs", {}).get(name, {}), whole, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], whole, depth + 1)
    if schema.get("type") == "array":
        item = example_of(schema.get("items") or {}, whole, depth + 1)
        return [item] * max(1, schema.get("minItems", 1))
    if schema.get("type") == "object":
        needed, members = schema.get("required", ()), schema.get("properties", {})
        return {name: example_of(members.get(name, {}), whole, depth + 1) for name in needed}
    if schema.get("type") in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return _SIMPLE.get(str(schema.get("type")), _TEXT)


def tensors_of(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return an Open Inference request with the declared inputs; None if it would be too long to read."""
    shapes = [[size if size > 0 else 1 for size in each.get("shape") or (1,)] for each in inputs]
    if not inputs or sum(math.prod(shape) for shape in shapes) > _MAX_ELEMENTS:
        return None
    return {
        "inputs": [
            {
                "name": each["name"],
                "shape": shape,
                "datatype": each["datatype"],
                "data": [_element(str(each["datatype"]))] * math.prod(shape),
            }
            for each, shape in zip(inputs, shapes, strict=True)
        ]
    }


def _element(datatype: str) -> Any:
    if datatype in ("BYTES", "BOOL"):
        return _TEXT if datatype == "BYTES" else True
    return 0.5 if datatype.startswith(("FP", "BF")) else 1
