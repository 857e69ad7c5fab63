"""The OpenAPI document of one Truss: its endpoints, and the schemas of what it takes and gives as far as it tells.

It is in OpenAPI 3.1, whose schemas are those of JSON Schema, as pydantic writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.truss.endpoints import ALIASES, Endpoint

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel

_JSON: Final = "application/json"
_BINARY: Final = "application/octet-stream"
_ANY: Final[dict[str, Any]] = {}
_MSGPACK: Final[dict[str, Any]] = {"type": "string", "format": "binary", "description": "the same in msgpack"}
_DEFINITIONS: Final = "#/$defs/"
_COMPONENTS: Final = "#/components/schemas/"
_ERROR: Final = "Error"
_ERRORS: Final[Mapping[str, Any]] = {
    status: {"description": told, "content": {_JSON: {"schema": {"$ref": f"{_COMPONENTS}{_ERROR}"}}}}
    for status, told in (
        ("400", "The payload is not what the model takes"),
        ("500", "The model has failed"),
        ("503", "The model is not ready, or has too many requests"),
    )
}
_READING: Final = {
    Endpoint.ready: ("", "Whether the model is loaded and well"),
    Endpoint.loaded: ("/loaded", "Whether the model is loaded"),
    Endpoint.schema: ("/schema", "The schemas of predict"),
    Endpoint.metrics: ("/metrics", "What the model's code counts"),
}


def document(model: ServedModel, declared: Mapping[str, Any], name: str, *, alone: bool) -> dict[str, Any]:
    """Describe a loaded model.

    Args:
        model: The model.
        declared: What the model declares.
        name: What it is called in paths.
        alone: Whether the paths of aliases are to be those that name no model, as on a Truss's own server.
    """
    schemas = _Schemas()
    schema = declared.get("schema") or {}
    paths: dict[str, Any] = {}
    endpoints = declared.get("endpoints", ())
    if Endpoint.predict.value in endpoints:
        taken, given = (
            schemas.add(schema.get("input_schema"), "Input"),
            schemas.add(schema.get("output_schema"), "Output"),
        )
        streams = bool(schema.get("supports_streaming"))
        paths[f"/v1/models/{name}:predict"] = {"post": _call(Endpoint.predict, taken, given, streams=streams)}
    base = "/v1" if alone else f"/v1/models/{name}/v1"
    for path, endpoint in ALIASES.items():
        if endpoint.value in endpoints:
            paths[f"{base}{path}"] = {"post": _call(endpoint, _ANY, _ANY, streams=True)}
    for endpoint, (suffix, summary) in _READING.items():
        if endpoint is Endpoint.schema and not schema:
            continue
        paths[f"/v1/models/{name}{suffix}"] = {"get": _reading(endpoint, summary)}
    error = {"type": "object", "required": ["error"], "properties": {"error": {"description": "What went wrong"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": model.name, "version": model.version},
        "paths": paths,
        "components": {"schemas": {**schemas.named, _ERROR: error}},
    }


def _call(endpoint: Endpoint, taken: dict[str, Any], given: dict[str, Any], *, streams: bool) -> dict[str, Any]:
    answers = {_JSON: {"schema": given}}
    if streams or not given:
        answers[_BINARY] = {"schema": _MSGPACK}
    return {
        "operationId": endpoint.value,
        "requestBody": {"content": {_JSON: {"schema": taken}, _BINARY: {"schema": _MSGPACK}}, "required": True},
        "responses": {"200": {"description": "What the model answers", "content": answers}, **_ERRORS},
    }


def _reading(endpoint: Endpoint, summary: str) -> dict[str, Any]:
    media_type = "text/plain" if endpoint is Endpoint.metrics else _JSON
    answer: dict[str, Any] = {"description": "What was asked for", "content": {media_type: {}}}
    return {"operationId": endpoint.value, "summary": summary, "responses": {"200": answer, "503": _ERRORS["503"]}}


class _Schemas:
    """The schemas of a document by name; those that one of pydantic's defines for itself get a name there, too."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def add(self, schema: dict[str, Any] | None, name: str) -> dict[str, Any]:
        """Add a schema and return the reference to it; what takes anything, where there is none."""
        if schema is None:
            return _ANY
        definitions = schema.get("$defs", {})
        own = {key: value for key, value in schema.items() if key != "$defs"}
        for key, value in ((name, own), *((f"{name}-{key}", value) for key, value in definitions.items())):
            self.named[key] = _referring(value, f"{_COMPONENTS}{name}-")
        return {"$ref": f"{_COMPONENTS}{name}"}


def _referring(value: Any, prefix: str) -> Any:
    """Return a schema with other references: the definitions have moved."""
    if isinstance(value, dict):
        return dict(_members(value, prefix))
    if isinstance(value, list):
        return [_referring(each, prefix) for each in value]
    return value


def _members(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if isinstance(value, str) and value.startswith(
            _DEFINITIONS
        ):  # a reference, or one in a discriminator's mapping
            yield key, prefix + value.removeprefix(_DEFINITIONS)
        else:
            yield key, _referring(value, prefix)
