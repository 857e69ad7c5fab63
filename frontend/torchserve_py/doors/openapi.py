"""What an OpenAPI 3.0.1 document is made of, and how endpoints become one.

`torchserve_py.doors.openapi_documents` has the endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

_DESCRIPTION: Final = "TorchServe is a flexible and easy to use tool for serving deep learning models"

JSON: Final = "application/json"
ANY_TYPE: Final = "*/*"

BINARY: Final[dict[str, Any]] = {"type": "string", "format": "binary"}
STATUS: Final[dict[str, Any]] = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
OBJECT: Final[dict[str, Any]] = {"type": "object"}
TORCHSERVE_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {"code": {"type": "integer"}, "type": {"type": "string"}, "message": {"type": "string"}},
}
#: An error of the Open Inference Protocol.
OPEN_INFERENCE_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operation; ``type`` is a type of JSON Schema, whose values ``least`` and ``most`` bound.

    Of a text ``least`` bounds the length.
    """

    name: str
    description: str
    type: str = "string"
    default: str | int | bool | None = None
    choices: tuple[str | bool, ...] = ()
    place: str = "query"
    required: bool = False
    least: int | None = None
    most: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The Parameter Object."""
        schema: dict[str, Any] = {"type": self.type}
        if self.type == "array":
            schema["items"] = {"type": "string"}
        if self.least is not None:
            schema["minLength" if self.type == "string" else "minimum"] = self.least
        if self.most is not None:
            schema["maximum"] = self.most
        if self.default is not None:
            schema["default"] = self.default
        if self.choices:
            schema["enum"] = list(self.choices)
        return {
            "in": self.place,
            "name": self.name,
            "description": self.description,
            "required": self.required,
            "schema": schema,
        }


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    Attributes:
        path: With ``{name}`` for each path parameter.
        method: Lower case.
        operation_id: Unique within a document, as OpenAPI demands.
        description: One sentence.
        statuses: What it may answer with.
        parameters: In order.
        answer: The schema of an answer below 400.
        answer_type: Its media type.
        error: The schema of an answer from 400 on; TorchServe's shape unless it says otherwise.
        takes_body: Whether a request may have a body, of any type.
        deprecated: Whether something newer is to be used.
    """

    path: str
    method: str
    operation_id: str
    description: str
    statuses: Sequence[int]
    parameters: Sequence[Parameter] = ()
    answer: dict[str, Any] | None = None
    answer_type: str = JSON
    error: dict[str, Any] = field(default_factory=lambda: TORCHSERVE_ERROR)
    takes_body: bool = False
    deprecated: bool = False

    def as_json(self) -> dict[str, Any]:
        """The Operation Object."""
        operation: dict[str, Any] = {
            "description": self.description,
            "operationId": self.operation_id,
            "parameters": [parameter.as_json() for parameter in self.parameters],
        }
        if self.takes_body:
            operation["requestBody"] = {"content": {ANY_TYPE: {"schema": BINARY}}, "required": False}
        operation["responses"] = {str(status): self._response(status) for status in self.statuses}
        if self.deprecated:
            operation["deprecated"] = True
        return operation

    def _response(self, status: int) -> dict[str, Any]:
        content = {JSON: {"schema": self.error}}
        if status < 400:
            content = {self.answer_type: {"schema": self.answer or STATUS}}
        return {"description": _REASONS[status], "content": content}


def document(title: str, version: str, endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document of these endpoints; an endpoint that comes twice stands there once."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint.as_json()
    return {
        "openapi": "3.0.1",
        "info": {"title": title, "description": _DESCRIPTION, "version": version},
        "paths": paths,
    }
