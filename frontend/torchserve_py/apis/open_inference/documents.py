"""OpenAPI documents of the Open Inference endpoints, of the server and of one model, and a page that shows one."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.endpoints.openapi import EVENTS, Described, Operation, Schema, described, document
from torchserve_py.endpoints.routing import Route
from ts.protocol.datatypes import DATATYPES
from ts.protocol.media_types import JSON

_DOCUMENT: Final = "open inference"
_OBJECT: Final[Schema] = {"type": "object", "additionalProperties": True}
_ITEMS: Final[Schema] = {"type": "array", "items": {}}
_SCHEMAS: Final[Mapping[str, Any]] = {
    **json.loads(resources.files(__package__).joinpath("schemas.json").read_text(encoding="utf-8")),
    "Datatype": {"type": "string", "enum": list(DATATYPES)},
}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_REQUEST: Final = _reference("InferenceRequest")
_RESPONSE: Final = _reference("InferenceResponse")
_EITHER_REQUEST: Final = {"anyOf": [_REQUEST, _reference("GenerateRequest")]}
_EITHER_RESPONSE: Final = {"anyOf": [_RESPONSE, _reference("GenerateResponse")]}


def _event(answer: Schema) -> Schema:
    """Return the schema of an event of a stream: its data are the text of a response in JSON."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": answer}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _operation(name: str, description: str, takes: Schema | None = None, gives: Schema | None = _OBJECT) -> Operation:
    content = {} if gives is None else {EVENTS: _event(gives)} if name.endswith("-stream") else {JSON: gives}
    return Operation(
        name,
        description,
        (200, "default"),
        takes=None if takes is None else {JSON: takes},
        gives=content,
        error=_reference("Error"),
        document=_DOCUMENT,
    )


#: The paths of the server.
SERVER: Final = {
    "/v2": _operation("server-metadata", "What the server is"),
    "/v2/health/live": _operation("server-live", "Whether the server runs"),
    "/v2/health/ready": _operation("server-ready", "Whether the server should get traffic"),
    "/v2/models/stats": _operation("server-statistics", "What all models have done"),
    "/v2/repository/index": _operation("repository-index", "The models there are", _OBJECT, _ITEMS),
    "/v2/repository/models/{model_name}/load": _operation("model-load", "Load a model", _OBJECT, None),
    "/v2/repository/models/{model_name}/unload": _operation("model-unload", "Unload a model", _OBJECT, None),
}
#: The paths of a model, behind its own.
MODEL: Final = {
    "": _operation("model-metadata", "What the model takes and gives", None, _reference("ModelMetadata")),
    "/ready": _operation("model-ready", "Whether the model is ready"),
    "/config": _operation("model-config", "How the model is served"),
    "/stats": _operation("model-statistics", "What the model has done"),
    "/infer": _operation("infer", "Run the model", _REQUEST, _RESPONSE),
    "/infer_stream": _operation("infer-stream", "Run the model; each response is an event", _REQUEST, _RESPONSE),
    "/generate": _operation("generate", "Run the model on a text", _EITHER_REQUEST, _EITHER_RESPONSE),
    "/generate_stream": _operation("generate-stream", "The same as events", _EITHER_REQUEST, _EITHER_RESPONSE),
}


def server_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of the whole server, of the routes that it has."""
    return _document("Data Plane", described(routes, _DOCUMENT))


def model_document(metadata: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Return the document of one model: its endpoints, with the tensors that it has declared as an example."""
    name = metadata["name"]
    prefix = f"/v2/models/{quote(name, safe='')}"
    if version is not None:
        prefix += f"/versions/{quote(version, safe='')}"
    operations = [(f"{prefix}{path}", "POST" if each.takes else "GET", each) for path, each in MODEL.items()]
    made = _document(f"Data Plane for {name}", operations)
    if metadata["inputs"]:
        example = {"inputs": [_example(tensor) for tensor in metadata["inputs"]]}
        for path in ("/infer", "/infer_stream"):
            made["paths"][f"{prefix}{path}"]["post"]["requestBody"]["content"][JSON]["example"] = example
    return made


def page(title: str, shown: Mapping[str, Any], location: str) -> bytes:
    """Return a page that lists what a document says, for people; it loads nothing from elsewhere."""
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['description'])}</td></tr>"
        for path, methods in shown["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f"<!DOCTYPE html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font-family:sans-serif;margin:2em}td{padding:.3em 1em .3em 0}</style></head>"
        f"<body><h1>{html.escape(title)}</h1><p>OpenAPI document: "
        f'<a href="{html.escape(location)}">{html.escape(location)}</a></p><table>{rows}</table></body></html>'
    ).encode()


def _document(title: str, operations: Iterable[Described]) -> dict[str, Any]:
    description = "The Open Inference Protocol (V2)"
    return document(title, operations, openapi="3.1.0", description=description, schemas=_SCHEMAS)


def _example(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape = [max(size, 1) for size in tensor["shape"]]
    element = {"BYTES": "text", "BOOL": True}.get(tensor["datatype"], 0)
    data = [element] * _count(shape, 16)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": data}


def _count(shape: Sequence[int], most: int) -> int:
    """Return how many elements a shape has, but not more than ``most``: a model may declare any number of any sizes."""
    count = 1
    for size in shape:
        count = min(count * size, most)
    return count
