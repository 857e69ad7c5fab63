"""OpenAPI documents of the Open Inference endpoints, of the server and of one model, and a page that shows one."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.version import __version__
from ts.open_inference.datatypes import DATATYPES

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_TEXT: Final[dict[str, Any]] = {"type": "string"}
_SHAPE: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer"}}
_SIZES: Final[dict[str, Any]] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_ITEMS: Final[dict[str, Any]] = {"type": "array", "items": {}}
#: Nested or flat; a single element needs no list.
_DATA: Final[dict[str, Any]] = {"type": ["array", "string", "number", "boolean"], "items": {}}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _array(of: str) -> dict[str, Any]:
    return {"type": "array", "items": _reference(of)}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """In a request null means absent."""
    kind = schema["type"]
    return {**schema, "type": [kind, "null"]}


_DATATYPE: Final[dict[str, Any]] = {"type": "string", "enum": list(DATATYPES)}
_TENSOR: Final = {"name": _TEXT, "datatype": _DATATYPE, "shape": _SHAPE, "parameters": _OBJECT}
_SCHEMAS: Final[dict[str, Any]] = {
    "Error": _object(("error",), error=_TEXT),
    "RequestInput": _object(
        ("name", "datatype", "shape", "data"),
        **{**_TENSOR, "shape": _SIZES, "parameters": _or_null(_OBJECT)},
        data=_DATA,
    ),
    "RequestOutput": _object(("name",), name=_TEXT, parameters=_or_null(_OBJECT)),
    "ResponseOutput": _object(("name", "datatype", "shape"), **_TENSOR, data=_ITEMS),
    "MetadataTensor": _object(("name", "datatype", "shape"), **_TENSOR),
    "InferenceRequest": _object(
        ("inputs",),
        id=_or_null(_TEXT),
        parameters=_or_null(_OBJECT),
        inputs=_array("RequestInput"),
        outputs=_or_null(_array("RequestOutput")),
    ),
    "InferenceResponse": _object(
        ("model_name", "outputs"),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_OBJECT,
        outputs=_array("ResponseOutput"),
    ),
    "GenerateRequest": _object(("text_input",), id=_or_null(_TEXT), text_input=_TEXT, parameters=_or_null(_OBJECT)),
    "GenerateResponse": _object(
        ("model_name",),
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        text_output=_TEXT,
        details=_OBJECT,
    ),
    "ModelMetadata": _object(
        ("name", "platform", "inputs", "outputs"),
        name=_TEXT,
        versions={"type": "array", "items": _TEXT},
        platform=_TEXT,
        inputs=_array("MetadataTensor"),
        outputs=_array("MetadataTensor"),
    ),
}
_REQUEST: Final = _reference("InferenceRequest")
_RESPONSE: Final = _reference("InferenceResponse")
_EITHER_REQUEST: Final = {"anyOf": [_REQUEST, _reference("GenerateRequest")]}
_EITHER_RESPONSE: Final = {"anyOf": [_RESPONSE, _reference("GenerateResponse")]}

#: Of the server: path, method, operation id, what it is, schema of the request, schema of the answer.
_SERVER: Final = (
    ("/v2", "get", "server-metadata", "What the server is", None, _OBJECT),
    ("/v2/health/live", "get", "server-live", "Whether the server runs", None, _OBJECT),
    ("/v2/health/ready", "get", "server-ready", "Whether the server should get traffic", None, _OBJECT),
    ("/v2/models/stats", "get", "server-statistics", "What all models have done", None, _OBJECT),
    ("/v2/repository/index", "post", "repository-index", "The models there are", _OBJECT, _ITEMS),
    ("/v2/repository/models/{model_name}/load", "post", "model-load", "Load a model", _OBJECT, None),
    ("/v2/repository/models/{model_name}/unload", "post", "model-unload", "Unload a model", _OBJECT, None),
)
#: Of a model, behind its path.
_MODEL: Final = (
    ("", "get", "model-metadata", "What the model takes and gives", None, _reference("ModelMetadata")),
    ("/ready", "get", "model-ready", "Whether the model is ready", None, _OBJECT),
    ("/config", "get", "model-config", "How the model is served", None, _OBJECT),
    ("/stats", "get", "model-statistics", "What the model has done", None, _OBJECT),
    ("/infer", "post", "infer", "Run the model", _REQUEST, _RESPONSE),
    ("/infer_stream", "post", "infer-stream", "Run the model; each response is an event", _REQUEST, _RESPONSE),
    ("/generate", "post", "generate", "Run the model on a text", _EITHER_REQUEST, _EITHER_RESPONSE),
    ("/generate_stream", "post", "generate-stream", "The same as events", _EITHER_REQUEST, _EITHER_RESPONSE),
)
_Operation = tuple[str, str, str, str, Any, Any]


def server_document() -> dict[str, Any]:
    """The document of the whole server."""
    versioned = ("/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}")
    operations: list[_Operation] = [*_SERVER]
    for prefix, mark in zip(versioned, ("", "version-"), strict=True):
        operations += [(f"{prefix}{path}", method, f"{mark}{id_}", *rest) for path, method, id_, *rest in _MODEL]
    return _document("Data Plane", operations)


def model_document(metadata: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """The document of one model: its endpoints, with the tensors that it has declared as an example.

    Args:
        metadata: What `descriptions.model_metadata` says.
        version: The version that the client named, if it named one.
    """
    name = metadata["name"]
    prefix = f"/v2/models/{quote(name, safe='')}"
    if version is not None:
        prefix += f"/versions/{quote(version, safe='')}"
    operations: list[_Operation] = [(f"{prefix}{path}", *rest) for path, *rest in _MODEL]
    described = _document(f"Data Plane for {name}", operations)
    if metadata["inputs"]:
        example = {"inputs": [_example(tensor) for tensor in metadata["inputs"]]}
        for path in ("/infer", "/infer_stream"):
            content = described["paths"][f"{prefix}{path}"]["post"]["requestBody"]["content"]
            content[_JSON]["example"] = example
    return described


def page(title: str, document: Mapping[str, Any], location: str) -> bytes:
    """A page that lists what a document tells, for people; it loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td></tr>"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f"<!DOCTYPE html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font-family:sans-serif;margin:2em}td{padding:.3em 1em .3em 0}</style></head>"
        f"<body><h1>{html.escape(title)}</h1><p>OpenAPI document: "
        f'<a href="{html.escape(location)}">{html.escape(location)}</a></p><table>{rows}</table></body></html>'
    ).encode()


def _document(title: str, operations: Sequence[_Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation_id, summary, request, answer in operations:
        paths.setdefault(path, {})[method] = _operation(path, operation_id, summary, request, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": "The Open Inference Protocol (V2)", "version": __version__},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _operation(path: str, operation_id: str, summary: str, request: Any, answer: Any) -> dict[str, Any]:
    streams = path.endswith("_stream")
    success: dict[str, Any] = {"description": "Success"}
    if answer is not None:
        success["content"] = {_EVENTS: {"schema": _event(answer)}} if streams else {_JSON: {"schema": answer}}
    operation: dict[str, Any] = {
        "operationId": operation_id,
        "summary": summary,
        "responses": {
            "200": success,
            "default": {"description": "Error", "content": {_JSON: {"schema": _reference("Error")}}},
        },
    }
    names = [name for name in ("model_name", "model_version") if f"{{{name}}}" in path]
    if names:
        operation["parameters"] = [{"in": "path", "name": name, "required": True, "schema": _TEXT} for name in names]
    if request is not None:
        operation["requestBody"] = {"content": {_JSON: {"schema": request}}}
    return operation


def _event(answer: Any) -> dict[str, Any]:
    """Each event of a stream: its data are the text of a response in JSON."""
    data = {"type": "string", "contentMediaType": _JSON, "contentSchema": answer}
    return _object(("data",), data=data)


def _example(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape = [max(size, 1) for size in tensor["shape"]]
    count = 1
    for size in shape:
        count *= size
    element = {"BYTES": "text", "BOOL": True}.get(tensor["datatype"], 0)
    data = [element] * min(count, 16)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": data}
