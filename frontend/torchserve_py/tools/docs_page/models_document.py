"""The OpenAPI document of what is served: each model with its signature, as far as it has declared one.

It is of version 3.1, whose schemas are JSON Schemas, as pydantic makes them. A function with `ts.serve` declares what
it takes and gives; a Truss has a schema, an MLServer model tensors. Other models take any body. A workflow takes what
its start node takes, and gives what its leaves give.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.apis.workflows.registry import Workflow
from torchserve_py.contracts.served_functions.own_path import own_path
from torchserve_py.contracts.served_functions.request_examples import declared_example
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.version import __version__
from ts.protocol.media_types import BYTES, JSON, JSON_LINES, MULTIPART, TEXT

_ANY_BODY: Final = {TEXT: {"type": "string"}, JSON: {}, BYTES: {"type": "string", "format": "binary"}}
_ERROR: Final = {"description": "The request or the server is wrong; the body says why, `ts-error-cause` in a word"}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "loc", "msg"],
                "properties": {
                    "type": {"type": "string"},
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "msg": {"type": "string"},
                    "input": {},
                },
            },
        },
    },
}
_UNFIT: Final = {
    "type": "urn:torchserve-py:invalid_request",
    "title": "Unprocessable Entity",
    "status": 422,
    "detail": "number: Field required",
    "errors": [{"type": "missing", "loc": ["number"], "msg": "Field required"}],
}
_RAISED: Final = {
    "type": "urn:torchserve-py:handler_error",
    "title": "Internal Server Error",
    "status": 500,
    "detail": "The model's code has raised an exception; its log says which.",
}
_TENSOR: Final = {
    "type": "object",
    "required": ["name", "shape", "datatype", "data"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string"},
        "data": {"type": "array", "items": {}},
    },
}
_KEY: Final = "key"
#: Where JSON Schemas of pydantic's have the types that they refer to.
_DEFINITIONS: Final = "#/$defs/"


def models_document(
    serving: Serving, workflows: Iterable[Workflow], sequence_header: str, *, needs_key: bool
) -> dict[str, Any]:
    """Return the document of the default versions of all models, and of the workflows.

    ``sequence_header``: the name of the header with a sequence's id. ``needs_key``: whether requests must carry a key.
    """
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    tags = []
    for model in serving.models():
        if model.is_function:
            continue
        declared = serving.declared(model)
        path, operation = _operation(model, declared, schemas)
        if model.is_stateful:
            operation["parameters"] = [_sequence(sequence_header)]
        paths[path] = {"post": {"tags": [model.name], "operationId": model.name, **operation}}
        tags.append({"name": model.name, "description": _about(model)})
    for workflow in workflows:
        path = f"/wfpredict/{quote(workflow.name, safe='')}"
        about = {"tags": [workflow.name], "operationId": f"wfpredict_{workflow.name}"}
        operation = _of_workflow(workflow, serving, schemas)
        if workflow.is_stateful:
            operation["parameters"] = [_sequence(sequence_header)]
        paths[path] = {"post": {**about, **operation}}
        tags.append({"name": workflow.name, "description": "workflow"})
    components: dict[str, Any] = {"schemas": schemas}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Models", "version": __version__, "description": "What this server serves."},
        "tags": tags,
        "paths": paths,
        "components": components,
    }
    if needs_key:
        components["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
        document["security"] = [{_KEY: []}]
    return document


def _operation(model: ServedModel, declared: Mapping[str, Any], schemas: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the operation of a model's predictions; types that it names go to ``schemas``."""
    name = quote(model.name, safe="")
    if (function := declared.get("function")) is not None:
        return own_path(model.name), _of_function(model.name, function, schemas)
    if model.contract.handlers:
        return f"/predictions/{name}", _described("", _ANY_BODY, {"*/*": {}}, needs_body=False)
    if declared.get("inputs"):
        return f"/v2/models/{name}/infer", _with_example(_of_tensors(declared), declared)
    found = declared.get("schema") or {}
    takes = _named(model.name, "request", _schema(model.name, found.get("input_schema") or {}, schemas), schemas)
    gives = _named(model.name, "response", _schema(model.name, found.get("output_schema") or {}, schemas), schemas)
    return f"/v1/models/{name}:predict", _with_example(_described("", {JSON: takes}, {JSON: gives}), declared)


def _of_workflow(workflow: Workflow, serving: Serving, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the operation of a workflow: what its start node takes, and what its leaves give."""
    dag = workflow.files.spec.dag
    leaves = {leaf: _given_by(workflow, leaf, serving, schemas) for leaf in dag.leaves}
    gives: Mapping[str, Any] = next(iter(leaves.values()))
    if len(leaves) > 1:
        properties = {leaf: content.get(JSON, {}).get("schema", {}) for leaf, content in leaves.items()}
        whole = {"type": "object", "required": list(leaves), "properties": properties}
        gives = {JSON: {"schema": whole}}
    operation = _described("A workflow", _ANY_BODY, {}, needs_body=False)
    if (start := _operation_of_node(workflow, next(iter(dag.parents)), serving, schemas)) is not None:
        operation["requestBody"] = start.get("requestBody", operation["requestBody"])
    operation["responses"]["200"]["content"] = gives
    return operation


def _given_by(workflow: Workflow, leaf: str, serving: Serving, schemas: dict[str, Any]) -> Mapping[str, Any]:
    """Return the content of a leaf's answers. A whole answer is labelled as JSON, whatever it is, as in TorchServe."""
    operation = _operation_of_node(workflow, leaf, serving, schemas)
    content: Mapping[str, Any] = {} if operation is None else operation["responses"]["200"]["content"]
    node = workflow.nodes[leaf]
    function = serving.declared(serving.get(node.model_name, node.model_version)).get("function") if content else None
    return content if JSON in content or (function or {}).get("streams") else {JSON: {}}


def _operation_of_node(
    workflow: Workflow, name: str, serving: Serving, schemas: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the operation of a node's model; None if the model is not there any more."""
    node = workflow.nodes[name]
    try:
        model = serving.get(node.model_name, node.model_version)
    except ModelError:
        return None
    return _operation(model, serving.declared(model), schemas)[1]


def _with_example(operation: dict[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operation with the request to begin with, if one is known."""
    if (example := declared_example(declared)) is not None:
        operation["requestBody"]["content"][JSON]["example"] = example
    return operation


def _of_function(name: str, function: Mapping[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the operation of a function: one value is a body by itself, several are an object or a form."""
    takes, request = function["takes"], _schema(name, function["request"], schemas)
    several = len(function["parameters"]) > 1
    bodies = dict(_bodies(takes, request, _named(name, "request", request, schemas), several=several))
    gives = function["gives"]
    response = _text_or_file(gives)
    if gives == JSON:
        response = _named(name, "response", _schema(name, function["response"], schemas), schemas)
    needs_body = bool(request.get("required")) if several else "default" not in request
    operation = _described(function["description"], bodies, {gives: response}, needs_body=needs_body)
    operation["responses"] |= {"422": _problem(_UNFIT), "default": _problem(_RAISED)}
    contents = operation["requestBody"]["content"]
    if "example" in function:
        for media_type in contents.keys() & {JSON, TEXT}:
            contents[media_type]["example"] = function["example"]
    if MULTIPART in contents and (encoding := _encoding(contents[MULTIPART]["schema"]["properties"])):
        contents[MULTIPART]["encoding"] = encoding
    if not function["parameters"]:
        del operation["requestBody"]
    return operation


def _problem(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response with a problem such as ``example``."""
    content = {"application/problem+json": {"schema": _PROBLEM, "example": example}}
    return {"description": "What is wrong, as RFC 9457 words it", "content": content}


def _bodies(
    takes: str, request: Mapping[str, Any], named: Mapping[str, Any], *, several: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the media types that a function takes, with their schemas; ``named`` is that of the request as JSON."""
    if takes != JSON:
        yield takes, _text_or_file(takes)
    if takes != BYTES:
        yield JSON, named
    if several:
        fields = {name: _field(each) for name, each in request.get("properties", {}).items()}
        yield MULTIPART, {**request, "properties": fields}


def _field(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field of a form, where a file needs no base64."""
    return {"type": "string", "format": "binary"} if schema.get("contentEncoding") == "base64" else schema


def _encoding(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a form writes lists: as JSON in one field, where OpenAPI would have a field for each item."""
    return {name: {"contentType": JSON} for name, each in fields.items() if _may_be_list(each)}


def _may_be_list(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "array" or any(map(_may_be_list, schema.get("anyOf", ())))


def _text_or_file(media_type: str) -> dict[str, Any]:
    is_text = media_type.startswith("text/") or media_type == JSON_LINES
    return {"type": "string"} if is_text else {"type": "string", "format": "binary"}


def _of_tensors(declared: Mapping[str, Any]) -> dict[str, Any]:
    words = "\n".join(
        f"- {kind} `{each['name']}`: {each['datatype']} {list(each['shape'])}"
        for kind in ("inputs", "outputs")
        for each in declared.get(kind) or ()
    )
    takes = {"type": "object", "required": ["inputs"], "properties": {"inputs": {"type": "array", "items": _TENSOR}}}
    gives = {"type": "object", "properties": {"outputs": {"type": "array", "items": _TENSOR}}}
    return _described(words, {JSON: takes}, {JSON: gives})


def _described(
    description: str, takes: Mapping[str, Any], gives: Mapping[str, Any], *, needs_body: bool = True
) -> dict[str, Any]:
    summary, _, rest = description.strip().partition("\n")
    return {
        "summary": summary,
        "description": rest.strip(),
        "requestBody": {
            "required": needs_body,
            "content": {name: {"schema": schema} for name, schema in takes.items()},
        },
        "responses": {
            "200": {"description": "The answer", "content": {name: {"schema": each} for name, each in gives.items()}},
            "default": _ERROR,
        },
    }


def _sequence(header: str) -> dict[str, Any]:
    return {
        "name": header,
        "in": "header",
        "description": "The sequence that the request belongs to; its first request begins it",
        "schema": {"type": "string"},
        "example": "demo",
    }


def _about(model: ServedModel) -> str:
    kind = "" if model.contract.handlers else f", {model.contract.name}"
    return f"version {model.version}{kind}"


def _schema(name: str, schema: Mapping[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose definitions have moved to ``schemas``, under names that begin with the model's."""
    plain = {key: value for key, value in schema.items() if key != "$defs"}
    for key, value in schema.get("$defs", {}).items():
        schemas[_component(name, key)] = _moved(name, value)
    moved: dict[str, Any] = _moved(name, plain)
    return moved


def _named(name: str, role: str, schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of an object, which goes to ``schemas``: clients make classes of these."""
    if "properties" not in schema:
        return schema
    component = _component(name, role)
    schemas[component] = schema
    return {"$ref": f"#/components/schemas/{component}"}


def _moved(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: f"#/components/schemas/{_component(name, each[len(_DEFINITIONS) :])}"
            if key == "$ref" and isinstance(each, str) and each.startswith(_DEFINITIONS)
            else _moved(name, each)
            for key, each in value.items()
        }
    return [_moved(name, each) for each in value] if isinstance(value, list | tuple) else value


def _component(name: str, key: str) -> str:
    """Return the name of a component, of the few characters that OpenAPI allows."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in f"{name}.{key}")
