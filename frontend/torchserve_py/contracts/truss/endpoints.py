"""The endpoints of Truss's interface, their paths, and the OpenAPI document of one Truss.

A Truss's own server has one model, and most of its paths do not name the model. Here each such path has a second form
with ``/v1/models/{model}`` or ``/v1/models/{model}/v1`` instead of ``/v1``, the base URL for a client library.

The document is in OpenAPI 3.1, whose schemas are those of JSON Schema, as pydantic writes them.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.openapi import Content, Described, Operation, Schema, document
from ts.protocol.media_types import JSON


class Endpoint(StrEnum):
    """What clients can ask for; the worker has the same names for the endpoints that run the model."""

    predict = "predict"
    chat_completions = "chat_completions"
    completions = "completions"
    embeddings = "embeddings"
    messages = "messages"
    responses = "responses"
    websocket = "websocket"
    metrics = "metrics"
    hot_reload = "hot_reload"
    ready = "ready"
    loaded = "loaded"
    schema = "schema"
    openapi = "openapi"


#: Endpoints that are read with GET; to the others a body is posted.
READING: Final = frozenset(
    {Endpoint.websocket, Endpoint.metrics, Endpoint.ready, Endpoint.loaded, Endpoint.schema, Endpoint.openapi}
)
#: The paths of the methods that have endpoints of their own, below ``/v1``.
ALIASES: Final[Mapping[str, Endpoint]] = {
    "/chat/completions": Endpoint.chat_completions,
    "/completions": Endpoint.completions,
    "/embeddings": Endpoint.embeddings,
    "/messages": Endpoint.messages,
    "/responses": Endpoint.responses,
}
_MODEL: Final = "/v1/models/{model_name}"
_BELOW_V1: Final = {**ALIASES, "/websocket": Endpoint.websocket}
#: The patterns of the paths, each with its endpoint.
PATHS: Final[Sequence[tuple[str, Endpoint]]] = (
    (f"{_MODEL}:predict", Endpoint.predict),
    (f"{_MODEL}:predict_binary", Endpoint.predict),
    ("/invocations", Endpoint.predict),
    ("/models/{model_name}/invoke", Endpoint.predict),
    *((f"{base}{path}", endpoint) for base in ("/v1", _MODEL, f"{_MODEL}/v1") for path, endpoint in _BELOW_V1.items()),
    ("/hot-reload", Endpoint.hot_reload),
    (f"{_MODEL}/hot-reload", Endpoint.hot_reload),
    (_MODEL, Endpoint.ready),
    (f"{_MODEL}/loaded", Endpoint.loaded),
    (f"{_MODEL}/schema", Endpoint.schema),
    (f"{_MODEL}/metrics", Endpoint.metrics),
    ("/openapi.json", Endpoint.openapi),
    (f"{_MODEL}/openapi.json", Endpoint.openapi),
)
#: Where clients of Baseten, the platform for Trusses, find a model; which deployment they name means nothing here.
DEPLOYMENTS: Final = ("/production", "/development", "/environments/{environment}", "/deployment/{deployment}")
#: The paths below these. The platform hands what is below ``/sync`` to the server as it is.
DEPLOYED_PATHS: Final[Sequence[tuple[str, Endpoint]]] = (
    ("/predict", Endpoint.predict),
    ("/websocket", Endpoint.websocket),
    *((f"/sync/v1{path}", endpoint) for path, endpoint in _BELOW_V1.items()),
)
#: What the platform itself does, and this server does not.
PLATFORMS_PATHS: Final[Mapping[str, str]] = {
    "/async_predict": "Requests cannot be left to be answered later: POST them to …/predict, and wait.",
    "/run_remote": "Chains are not served: serve each of its models as a Truss.",
}

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
_READ_PATHS: Final = {
    "": _READ._replace(id=Endpoint.ready, description="Whether the model is loaded and well"),
    "/loaded": _READ._replace(id=Endpoint.loaded, description="Whether the model is loaded"),
    "/schema": _READ._replace(id=Endpoint.schema, description="The schemas of predict"),
    "/metrics": _READ._replace(
        id=Endpoint.metrics, description="What the model's code counts", gives={"text/plain": _ANY}
    ),
}


def document_of(model: ServedModel, declared: Mapping[str, Any], name: str, *, alone: bool) -> dict[str, Any]:
    """Describe a loaded model; ``alone``: whether the paths of aliases name no model, as on a Truss's own server."""
    schemas: dict[str, Any] = {}
    schema = declared.get("schema") or {}
    endpoints = declared.get("endpoints", ())
    operations: list[Described] = []
    if Endpoint.predict in endpoints:
        taken = _add(schemas, schema.get("input_schema"), "Input")
        given = _add(schemas, schema.get("output_schema"), "Output")
        streams = bool(schema.get("supports_streaming"))
        operations.append((f"/v1/models/{name}:predict", "POST", _call(Endpoint.predict, taken, given, streams)))
    base = "/v1" if alone else f"/v1/models/{name}/v1"
    for path, endpoint in ALIASES.items():
        if endpoint in endpoints:
            operations.append((f"{base}{path}", "POST", _call(endpoint, _ANY, _ANY, True)))
    for path, operation in _READ_PATHS.items():
        if schema or path != "/schema":
            operations.append((f"/v1/models/{name}{path}", "GET", operation))
    schemas["Error"] = _ERROR
    description = f"The endpoints of the Truss {model.name}"
    return document(
        model.name, operations, version=model.version, openapi="3.1.0", description=description, schemas=schemas
    )


def _call(endpoint: Endpoint, taken: Schema, given: Schema, streams: bool) -> Operation:
    gives: Content = {JSON: given, **(_MSGPACK if streams or not given else {})}
    return _CALL._replace(id=endpoint, takes={JSON: taken, **_MSGPACK}, gives=gives)


def _add(schemas: dict[str, Any], schema: dict[str, Any] | None, name: str) -> Schema:
    """Add a schema, and those that it defines for itself, to those of the document; return the reference to it."""
    if schema is None:
        return _ANY
    moved = json.loads(json.dumps(schema).replace('"#/$defs/', f'"{_COMPONENTS}{name}-'))
    for key, definition in moved.pop("$defs", {}).items():
        schemas[f"{name}-{key}"] = definition
    schemas[name] = moved
    return {"$ref": f"{_COMPONENTS}{name}"}
