"""The OpenAPI document of one Truss: its endpoints, and the schemas that it declares.

It is in OpenAPI 3.1, whose schemas are those of JSON Schema, as pydantic writes them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.core.serving import ServedModel
from torchserve_py.doors.openapi import JSON, Content, Described, Operation, Schema, document
from torchserve_py.doors.truss.endpoints import ALIASES, Endpoint

_ANY: Final[Schema] = {}
_MSGPACK: Final[Content] = {
    "application/octet-stream": {"type": "string", "format": "binary", "description": "the same in msgpack"}
}
_COMPONENTS: Final = "#/components/schemas/"
_ERROR: Final = {"type": "object", "required": ["error"], "properties": {"error": {"description": "What went wrong"}}}
_CALL: Final = Operation(
    "", "Run the model's code", (200, 400, 500, 503), error={"$ref": f"{_COMPONENTS}Error"}, needs_body=True
)
_READ: Final = _CALL._replace(statuses=(200, 503), gives={JSON: _ANY}, needs_body=False)
_READING: Final = {
    "": _READ._replace(id=Endpoint.ready.value, description="Whether the model is loaded and well"),
    "/loaded": _READ._replace(id=Endpoint.loaded.value, description="Whether the model is loaded"),
    "/schema": _READ._replace(id=Endpoint.schema.value, description="The schemas of predict"),
    "/metrics": _READ._replace(
        id=Endpoint.metrics.value, description="What the model's code counts", gives={"text/plain": _ANY}
    ),
}


def document_of(model: ServedModel, declared: Mapping[str, Any], name: str, *, alone: bool) -> dict[str, Any]:
    """Describe a loaded model; ``alone``: whether the paths of aliases name no model, as on a Truss's own server."""
    schemas: dict[str, Any] = {}
    schema = declared.get("schema") or {}
    endpoints = declared.get("endpoints", ())
    operations: list[Described] = []
    if Endpoint.predict.value in endpoints:
        taken = _add(schemas, schema.get("input_schema"), "Input")
        given = _add(schemas, schema.get("output_schema"), "Output")
        streams = bool(schema.get("supports_streaming"))
        operations.append((f"/v1/models/{name}:predict", "POST", _call(Endpoint.predict, taken, given, streams)))
    base = "/v1" if alone else f"/v1/models/{name}/v1"
    for path, endpoint in ALIASES.items():
        if endpoint.value in endpoints:
            operations.append((f"{base}{path}", "POST", _call(endpoint, _ANY, _ANY, True)))
    for path, operation in _READING.items():
        if schema or path != "/schema":
            operations.append((f"/v1/models/{name}{path}", "GET", operation))
    schemas["Error"] = _ERROR
    description = f"The endpoints of the Truss {model.name}"
    return document(
        model.name, operations, version=model.version, openapi="3.1.0", description=description, schemas=schemas
    )


def _call(endpoint: Endpoint, taken: Schema, given: Schema, streams: bool) -> Operation:
    gives: Content = {JSON: given, **(_MSGPACK if streams or not given else {})}
    return _CALL._replace(id=endpoint.value, takes={JSON: taken, **_MSGPACK}, gives=gives)


def _add(schemas: dict[str, Any], schema: dict[str, Any] | None, name: str) -> Schema:
    """Add a schema, and those that it defines for itself, to those of the document; return the reference to it."""
    if schema is None:
        return _ANY
    moved = json.loads(json.dumps(schema).replace('"#/$defs/', f'"{_COMPONENTS}{name}-'))
    for key, definition in moved.pop("$defs", {}).items():
        schemas[f"{name}-{key}"] = definition
    schemas[name] = moved
    return {"$ref": f"{_COMPONENTS}{name}"}
