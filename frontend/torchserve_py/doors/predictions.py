"""The inference door: ``/predictions`` and ``/explanations``. (`surfaces` has the other paths that lead here.)

A request is passed on as it came: raw headers, raw body. The worker decodes. This is the server's hottest path, so it
makes no object that it does not need and does its bookkeeping in the answer's one write (see `responses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from torchserve_py.doors import priorities
from torchserve_py.doors.failures import bad_request
from torchserve_py.doors.openapi import BINARY, OPEN_INFERENCE_ERROR, Operation, document
from torchserve_py.doors.pipeline import HttpExchange
from torchserve_py.doors.routing import AfterBody, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.torchserve_dialect import TorchServeDialect
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel

Pairs = tuple[tuple[str, str], ...]

PREDICT: Final = Operation(
    "predictions",
    "Predict with the default version of a model",
    (200, 400, 404, 408, 409, 410, 500, 503),
    takes=BINARY,
    gives=BINARY,
    method="POST",
)
V1_PREDICT: Final = PREDICT._replace(id="v1_predictions")
V2_PREDICT: Final = PREDICT._replace(
    id="v2_predictions", statuses=(*PREDICT.statuses, 422, 501), error=OPEN_INFERENCE_ERROR
)
EXPLAIN: Final = PREDICT._replace(id="explanations", description="Explain with the default version of a model")

#: The sequence, the content type and the priority of a request.
_Head = tuple[SequenceRequest | None, str | None, int]


class InferenceDoor:
    """Turns HTTP requests into jobs, and the parts of their responses into HTTP answers."""

    def __init__(self, context: DoorContext) -> None:
        self._serving = context.serving
        self._responses = context.responses
        self._sequences = SequenceHeaders(context.settings)
        self._dialect = TorchServeDialect(self._sequences.id_name)
        self._max_body = context.settings.max_request_size

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table."""
        return [
            row
            for path, handler, operation in (
                ("/predictions/{model_name}", self._predictions, PREDICT),
                ("/explanations/{model_name}", self._explanations, EXPLAIN),
            )
            for row in (
                Route(path, handler, operations=(operation,)),
                Route(f"{path}/{{model_version}}", handler, operations=(_of_version(operation),)),
                Route(f"{path}/{{model_version}}/{{rest:path}}", handler),
            )
        ]

    def _predictions(self, request: Request, values: PathValues) -> Reply:
        return self.infer(request, values["model_name"], values.get("model_version"), _told(values, "False"))

    def _explanations(self, request: Request, values: PathValues) -> Reply:
        return self.infer(request, values["model_name"], values.get("model_version"), _told(values, "True"))

    def infer(
        self,
        request: Request,
        name: str,
        version: str | None,
        server_headers: Pairs,
        *,
        parameters: Pairs = (),
        body: bytes | None = None,
    ) -> Reply:
        """Run a request on a model; where the method is OPTIONS, describe the model's API instead.

        Args:
            request: The request.
            name: The model.
            version: Its version; None for the default one.
            server_headers: What the server tells the handler about the path; wins over the client's headers.
            parameters: Names and values that become values of the row beside the body's.
            body: The request's body, if it has been read.

        Raises:
            DoorError: The request is refused before there is a job.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        model = self._serving.get(name, version)
        if request.method == "OPTIONS":
            return self._responses.send_json(request, 200, predict_document(name))
        head = self._head(request, model)

        def predict(body: bytes) -> HttpExchange:
            return self._predict(request, model, version, head, server_headers, body, parameters)

        return AfterBody(self._max_body, predict) if body is None else predict(body)

    def _predict(
        self,
        request: Request,
        model: ServedModel,
        version: str | None,
        head: _Head,
        server_headers: Pairs,
        body: bytes,
        parameters: Pairs = (),
    ) -> HttpExchange:
        """Submit a request."""
        sequence, content_type, priority = head
        row: Any = body
        if parameters:
            row = [*((key, None, value) for key, value in parameters), (None, content_type, body)]
            content_type = None
        headers = request.raw_headers + server_headers
        if sequence is not None:
            headers += sequence.headers
        asked = InferenceRequest(
            headers,
            row,
            content_type,
            sequence=sequence,
            by_default=version is None,
            priority=priority,
        )
        return HttpExchange(self._responses, self._dialect, request, self._serving, model, asked, version)

    def _head(self, request: Request, model: ServedModel) -> _Head:
        """Return the sequence, the content type and the priority that the headers name.

        Raises:
            DoorError: One of them is not what it should be.
        """
        sequence = self._sequences.read(request) if model.is_stateful else None
        content_type = request.headers.get("Content-Type", "")
        if content_type and not content_type.isascii():
            raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
        return sequence, content_type, priorities.of_request(request)


def predict_document(model: str) -> dict[str, Any]:
    """Return the OpenAPI document that says how to predict with a model."""
    name = quote(model, safe="")
    operations = (
        (f"/predictions/{name}", "post", PREDICT._replace(id=model)),
        (f"/v1/models/{name}:predict", "post", V1_PREDICT._replace(id=f"v1_{model}")),
        (f"/v2/models/{name}/infer", "post", V2_PREDICT._replace(id=f"v2_{model}")),
    )
    return document(f"RESTful API for: {model}", operations, version="1.0.0")


def _of_version(operation: Operation) -> Operation:
    description = operation.description.replace("the default version", "a version")
    return operation._replace(id=f"version_{operation.id}", description=description)


def _told(values: PathValues, explain: str) -> Pairs:
    """Return what the server tells the handler about the path."""
    return (("url_path", values.get("rest", "")), ("explain", explain))
