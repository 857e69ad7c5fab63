"""OpenAPI documents: the operations of routes, and documents made of them.

Operation ids and parameters are TorchServe's. Errors of its documents are corrected: an operation id that TorchServe
uses for several paths starts with the protocol here, defaults have the type of their parameter, path parameters are
declared, and errors have the shape of their protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from torchserve_py.endpoints.body_schemas import body_schema
from torchserve_py.version import TORCHSERVE_VERSION, __version__
from ts.protocol.media_types import EVENT_STREAM, JSON

if TYPE_CHECKING:
    from pydantic import BaseModel

    from torchserve_py.endpoints.routing import Route

Schema: TypeAlias = Mapping[str, Any]
#: The schema of a body by its media type, or the model that reads the body.
Content: TypeAlias = "Mapping[str, Schema | type[BaseModel]]"

EVENTS: Final = EVENT_STREAM
ANY_TYPE: Final = "*/*"
TEXT: Final[Schema] = {"type": "string"}
OBJECT: Final[Schema] = {"type": "object"}
BINARY: Final[Content] = {ANY_TYPE: {"type": "string", "format": "binary"}}
STATUS: Final[Schema] = {"type": "object", "required": ["status"], "properties": {"status": TEXT}}
STATUS_CONTENT: Final[Content] = {JSON: STATUS}
TORCHSERVE_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {"code": {"type": "integer"}, "type": TEXT, "message": TEXT},
}
#: An error of the Open Inference Protocol.
OPEN_INFERENCE_ERROR: Final[Schema] = {"type": "object", "required": ["error"], "properties": {"error": TEXT}}

_VERSION: Final = "3.0.1"
_DESCRIPTION: Final = "TorchServe is a flexible and easy to use tool for serving deep learning models"
_REASONS: Final[dict[int | str, str]] = {status.value: status.phrase for status in HTTPStatus}
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_PATH_PARAMETERS: Final = {
    "model_name": "Name of the model",
    "model_version": "Version of the model",
    "workflow_name": "Name of the workflow",
}


class Parameter(NamedTuple):
    """A parameter of a query, or of another place.

    ``type`` is a type of JSON Schema; ``least`` and ``most`` bound its values. For a text, ``least`` is the shortest
    length. Without ``has_effect`` the server ignores the value, whatever it is.
    """

    name: str
    description: str
    type: str = "string"
    default: str | int | bool | None = None
    choices: tuple[str | bool, ...] = ()
    required: bool = False
    least: int | None = None
    most: int | None = None
    has_effect: bool = True
    place: Literal["query", "path", "header"] = "query"

    def as_json(self) -> dict[str, Any]:
        """Return the Parameter Object."""
        schema: dict[str, Any] = {"type": self.type}
        if self.type == "array":
            schema["items"] = TEXT
        if self.least is not None:
            schema["minLength" if self.type == "string" else "minimum"] = self.least
        if self.most is not None:
            schema["maximum"] = self.most
        if self.default is not None:
            schema["default"] = self.default
        if self.choices:
            schema["enum"] = list(self.choices)
        named = {"name": self.name, "description": self.description, "required": self.required}
        return {"in": self.place, **named, "schema": schema}


class Operation(NamedTuple):
    """The documentation of one method of a path.

    Attributes:
        id: Unique within a document, as OpenAPI demands.
        description: One sentence.
        statuses: What it may answer with; ``default`` stands for every status that is not listed.
        parameters: Those of the query and the headers, in order. Those of the path follow from it.
        takes: The bodies that a request may have; None where it has none.
        gives: The bodies of answers below 400.
        error: The schema of an answer from 400 on.
        method: The method, for a route that takes several; empty for the route's first one.
        document: Which document it is in, for endpoints with a document of their own.
        deprecated: Whether something newer is to be used.
        needs_body: Whether a request must have a body.
    """

    id: str
    description: str
    statuses: Sequence[int | str] = (200,)
    parameters: Sequence[Parameter] = ()
    takes: Content | None = None
    gives: Content = STATUS_CONTENT
    error: Schema = TORCHSERVE_ERROR
    method: str = ""
    document: str = ""
    deprecated: bool = False
    needs_body: bool = False

    def as_json(self, path: str) -> dict[str, Any]:
        """Return the Operation Object."""
        in_path = [
            Parameter(name, _PATH_PARAMETERS.get(name, name), required=True, place="path").as_json()
            for name in _PATH_PARAMETER.findall(path)
        ]
        operation: dict[str, Any] = {
            "description": self.description,
            "operationId": self.id,
            "parameters": [*in_path, *(parameter.as_json() for parameter in self.parameters)],
        }
        if self.takes is not None:
            operation["requestBody"] = {"content": _content(self.takes), "required": self.needs_body}
        operation["responses"] = {str(status): self._response(status) for status in self.statuses}
        if self.deprecated:
            operation["deprecated"] = True
        return operation

    def of_version(self, model: str, version: str) -> Operation:
        """Return the same operation of a version of a model; ``version`` is what its description says for ``model``."""
        return self._replace(id=f"version_{self.id}", description=self.description.replace(model, version))

    def _response(self, status: int | str) -> dict[str, Any]:
        content = self.gives if isinstance(status, int) and status < 400 else {JSON: self.error}
        response: dict[str, Any] = {"description": _REASONS.get(status, "Error")}
        if content and status != HTTPStatus.NO_CONTENT:
            response["content"] = _content(content)
        return response


#: An operation with the path and the method where it is.
Described = tuple[str, str, Operation]


def described(routes: Iterable[Route], document: str = "") -> list[Described]:
    """Return the operations that routes declare for one document."""
    return [
        (_PATH_PARAMETER.sub(r"{\1}", route.path), operation.method or route.methods[0], operation)
        for route in routes
        for operation in route.operations
        if operation.document == document
    ]


def document(
    title: str,
    operations: Iterable[Described],
    *,
    version: str = TORCHSERVE_VERSION,
    openapi: str = _VERSION,
    description: str = _DESCRIPTION,
    schemas: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the OpenAPI document of some operations; one that comes twice stands there once."""
    paths: dict[str, dict[str, Any]] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {}).setdefault(method.lower(), operation.as_json(path))
    made: dict[str, Any] = {
        "openapi": openapi,
        "info": {"title": title, "description": description, "version": version, "x-torchserve-py": __version__},
        "paths": paths,
    }
    if schemas is not None:
        made["components"] = {"schemas": schemas}
    return made


def _content(content: Content) -> dict[str, Any]:
    return {
        media_type: {"schema": schema if isinstance(schema, Mapping) else body_schema(schema)}
        for media_type, schema in content.items()
    }
