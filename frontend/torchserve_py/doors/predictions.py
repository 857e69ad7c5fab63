"""The door for ``/predictions`` and ``/explanations``; `surfaces` has the other paths that lead here.

The raw headers and the raw body go to the worker, which decodes them. This is the server's hottest path: it makes as
few objects as it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.doors import priorities
from torchserve_py.doors.openapi import BINARY, OPEN_INFERENCE_ERROR, Operation, document
from torchserve_py.doors.pipeline import HttpExchange
from torchserve_py.doors.requests import content_type_of
from torchserve_py.doors.responses import json_answer
from torchserve_py.doors.routing import Door, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.sagemaker_sessions import Session
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.torchserve_dialect import TorchServeDialect
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request

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


class InferenceDoor(Door):
    """Turns HTTP requests into jobs, and the parts of their responses into HTTP answers."""

    def __init__(self, context: DoorContext) -> None:
        super().__init__(context)
        self._sequences = SequenceHeaders(context.settings)
        self._dialect = TorchServeDialect(self._sequences.id_name)

    def routes(self) -> Iterator[Route]:
        for path, explain, operation in (("/predictions", "False", PREDICT), ("/explanations", "True", EXPLAIN)):
            handler = partial(self._infer, explain)
            yield Route(f"{path}/{{model_name}}", handler, operations=(operation,))
            of_version = operation.of_version("the default version", "a version")
            yield Route(f"{path}/{{model_name}}/{{model_version}}", handler, operations=(of_version,))
            yield Route(f"{path}/{{model_name}}/{{model_version}}/{{rest:path}}", handler)

    def _infer(self, explain: str, request: Request, values: PathValues) -> Reply:
        headers = (("url_path", values.get("rest", "")), ("explain", explain))
        return self.infer(request, values["model_name"], values.get("model_version"), headers)

    def infer(
        self,
        request: Request,
        name: str,
        version: str | None,
        server_headers: Pairs,
        *,
        parameters: Pairs = (),
        body: bytes | None = None,
        session: Session | None = None,
    ) -> Reply:
        """Run a request on a model; where the method is OPTIONS, describe the model's API instead.

        Args:
            server_headers: What the server tells the handler about the path; wins over the client's headers.
            parameters: Names and values that become values of the row beside the body's.
            body: The request's body, if it has been read.
            session: The session at SageMaker that the request belongs to, instead of a sequence that it names.
        """
        model = self.serving.get(name, version)
        if request.method == "OPTIONS":
            return json_answer(predict_document(name))
        sequence, dialect = None, self._dialect
        if session is not None:
            sequence, dialect = session
        elif model.is_stateful:
            sequence = self._sequences.of(request.headers)
        content_type = content_type_of(request)
        priority = priorities.of_request(request)

        def submit(body: bytes) -> HttpExchange:
            row: Any = body
            if parameters:
                row = [*((key, None, value) for key, value in parameters), (None, content_type, body)]
            headers = request.raw_headers + server_headers
            inference = InferenceRequest(
                headers if sequence is None else headers + sequence.headers,
                row,
                None if parameters else content_type,
                sequence=sequence,
                by_default=version is None,
                priority=priority,
            )
            return self.context.submit(request, dialect, model, inference, version)

        return submit if body is None else submit(body)


def predict_document(model: str) -> dict[str, Any]:
    """Return the OpenAPI document that says how to predict with a model."""
    name = quote(model, safe="")
    operations = (
        (f"/predictions/{name}", "post", PREDICT._replace(id=model)),
        (f"/v1/models/{name}:predict", "post", V1_PREDICT._replace(id=f"v1_{model}")),
        (f"/v2/models/{name}/infer", "post", V2_PREDICT._replace(id=f"v2_{model}")),
    )
    return document(f"RESTful API for: {model}", operations, version="1.0.0")
