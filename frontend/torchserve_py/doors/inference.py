"""The inference door: ``/predictions`` and ``/explanations``. (`surfaces` has the other paths that lead here.)

A request is passed on as it came: raw headers, raw body. The worker decodes. This is the server's hottest path, so it
makes no object that it does not need and does its bookkeeping in the answer's one write (see `responses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors import priorities
from torchserve_py.doors.answering import AfterBody, Reply
from torchserve_py.doors.errors import bad_request, check_method, not_found
from torchserve_py.doors.openapi_documents import predict_document
from torchserve_py.doors.pipeline import HttpExchange
from torchserve_py.doors.responses import Responses
from torchserve_py.doors.routing import Path, Route, Routes
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.doors.torchserve_dialect import TorchServeDialect
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.settings.table import Settings

Pairs = tuple[tuple[str, str], ...]

#: What the server tells the handler about the path, where the path ends with the model (or its version).
_PREDICT: Final[Pairs] = (("url_path", ""), ("explain", "False"))
_EXPLAIN: Final[Pairs] = (("url_path", ""), ("explain", "True"))


#: The sequence, the content type and the priority of a request.
_Head = tuple[SequenceRequest | None, str | None, int]


class InferenceDoor:
    """Turns HTTP requests into jobs, and the parts of their responses into HTTP answers."""

    def __init__(self, settings: Settings, serving: Serving, responses: Responses) -> None:
        self._serving = serving
        self._responses = responses
        self._sequences = SequenceHeaders(settings)
        self._dialect = TorchServeDialect(self._sequences.id_name)
        self._max_body = settings.max_request_size

    @property
    def routes(self) -> Routes:
        """First path segment to handler."""
        route = Route(self.predictions, TokenType.inference)
        return {"predictions": route, "explanations": route}

    def predictions(self, request: Request, path: Path) -> Reply:
        """``/predictions/{model}[/{version}[/{rest…}]]``, any method; ``/explanations`` likewise."""
        name, version = _model_of(path)
        return self.infer(request, name, version, _path_headers(path))

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
        check_method(request.method)
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
        """Make a job of a request."""
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
        """The sequence, the content type and the priority that the headers name.

        Raises:
            DoorError: One of them is not what it should be.
        """
        sequence = self._sequences.read(request) if model.is_stateful else None
        content_type = request.headers.get("Content-Type", "")
        if content_type and not content_type.isascii():
            raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
        return sequence, content_type, priorities.of_request(request)


def _model_of(path: Path) -> tuple[str, str | None]:
    """The model that a path names, and its version if that is named, too."""
    depth = len(path)
    if depth < 2:
        raise not_found()
    return path[1], path[2] if depth > 2 else None


def _path_headers(path: Path) -> Pairs:
    explains = path[0] == "explanations"
    if len(path) <= 3:
        return _EXPLAIN if explains else _PREDICT
    return (("url_path", "/".join(path[3:])), ("explain", "True" if explains else "False"))
