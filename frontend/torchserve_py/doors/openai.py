"""The door for OpenAI's interface: chat, completions and embeddings of models that declare ``openai: true``.

    POST /v1/chat/completions   /v1/completions   /v1/embeddings

The body's ``model`` names the model. The handler gets the body, and in the request header ``url_path`` the path, as
under ``/predictions/{model}/{version}/v1/chat/completions``; so `ts.torch_handler.vllm_handler` serves both. It answers
as OpenAI does; a stream is made of server-sent events, which the handler writes. (`v1_models` has ``GET /v1/models``.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from torchserve_py.bounded_json import UnreadableJson, read_member
from torchserve_py.doors import priorities
from torchserve_py.doors.failures import DoorError, Failure
from torchserve_py.doors.openapi import EVENTS, JSON, OBJECT, Operation
from torchserve_py.doors.pipeline import Answer, HttpDialect, HttpExchange
from torchserve_py.doors.requests import split_path
from torchserve_py.doors.responses import EVENTS_TYPE, JSON_TYPE
from torchserve_py.doors.routing import AfterBody, DoorContext, PathValues, Reply, Route
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.jobs.parts import Part

_NO_MODELS: Final = "No model declares OpenAI's interface (openai: true in its model-config.yaml)."
#: A Truss, which has the same paths, says in a text what is wrong.
_ERROR: Final = {"type": "object", "required": ["error"], "properties": {"error": {}}}
_OPERATIONS: Final = {
    path: Operation(
        f"openai_{name}",
        f"{description} of a model that declares OpenAI's interface; the body names it as its model",
        (200, "default"),
        takes={JSON: OBJECT},
        gives={JSON: OBJECT, EVENTS: {"type": "string"}},
        error=_ERROR,
        needs_body=True,
    )
    for path, name, description in (
        ("/v1/chat/completions", "chat_completions", "A chat completion"),
        ("/v1/completions", "completions", "A completion"),
        ("/v1/embeddings", "embeddings", "Embeddings"),
    )
}


class OpenAIDialect(HttpDialect):
    """Errors are ``{"error": {…}}``; within a stream, an event of that shape, which OpenAI's clients raise."""

    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        return Answer(failure.status, _error(failure), (JSON_TYPE,))

    def opening(self, exchange: HttpExchange, first: Part) -> Answer:
        """Return the head of a stream; the content type is that of events unless the handler set one."""
        headers = first.headers
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers = [*headers, list(EVENTS_TYPE)]
        return Answer(first.status, b"", headers, first.reason)

    def last_frame(self, failure: Failure) -> Sequence[bytes]:
        """Return the event for a failure."""
        return (b"data: ", _error(failure), b"\n\n")


DIALECT: Final = OpenAIDialect()


class OpenAIDoor:
    """Runs the requests of OpenAI's clients."""

    def __init__(self, context: DoorContext) -> None:
        self._serving = context.serving
        self._responses = context.responses
        self._max_body = context.settings.max_request_size

    @property
    def routes(self) -> Sequence[Route]:
        return [
            Route(path, self._run, ("POST",), dialect=DIALECT, operations=(operation,))
            for path, operation in _OPERATIONS.items()
        ]

    def _run(self, request: Request, values: PathValues) -> AfterBody:
        return AfterBody(self._max_body, lambda body: self._submit(request, body))

    def _submit(self, request: Request, body: bytes) -> Reply:
        """Run a request on the model that its body names, or on the only model of this interface."""
        models = self._models()
        name = _name_in(body)
        model = models.get(name)
        if model is None:
            if len(models) != 1:
                raise _unknown(name, models)
            (model,) = models.values()  # the name may be one that the handler knows, such as an adapter's
        headers = (("url_path", "/".join(split_path(request.target))), ("explain", "False"))
        content_type = request.headers.get("Content-Type")
        priority = priorities.of_request(request)
        inference = InferenceRequest(
            request.raw_headers + headers, body, content_type, by_default=True, priority=priority
        )
        return HttpExchange(self._responses, DIALECT, request, self._serving, model, inference)

    def _models(self) -> dict[str, ServedModel]:
        return {model.name: model for model in self._serving.models() if model.config.openai}


def _name_in(body: bytes) -> str:
    try:
        name = read_member(body, "model")
    except UnreadableJson:
        return ""
    return name if isinstance(name, str) else ""


def _unknown(name: str, models: dict[str, ServedModel]) -> DoorError:
    known = f"Models of OpenAI's interface: {', '.join(models)}." if models else _NO_MODELS
    message = f"The model {name!r} does not exist. {known}"
    return DoorError(Failure(404, "ModelNotFoundException", message, "model_not_found"))


def _error(failure: Failure) -> bytes:
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.cause or None}
    return json.dumps({"error": error}).encode()
