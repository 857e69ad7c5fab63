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
from torchserve_py.doors.answering import AfterBody, Reply
from torchserve_py.doors.errors import DoorError, Failure
from torchserve_py.doors.pipeline import Answer, HttpDialect, HttpExchange
from torchserve_py.doors.responses import JSON_TYPE, RETRY_AFTER_SECONDS, Responses
from torchserve_py.doors.routing import Path, Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.jobs.inference_request import InferenceRequest
from ts.protocol.messages import CAUSE_HEADER

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.doors.truss.door import TrussDoor
    from torchserve_py.jobs.parts import Part
    from torchserve_py.settings.table import Settings
    from torchserve_py.transport.http1.request import Request

_PATHS: Final = frozenset((("v1", "chat", "completions"), ("v1", "completions"), ("v1", "embeddings")))
_EVENTS_TYPE: Final = ("content-type", "text/event-stream; charset=utf-8")


class OpenAIDialect(HttpDialect):
    """Errors are ``{"error": {…}}``; within a stream, an event of that shape, which OpenAI's clients raise."""

    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        """The answer that tells of a failure."""
        headers = [JSON_TYPE]
        if failure.cause:
            headers.append((CAUSE_HEADER, failure.cause))
        if failure.overloaded:
            headers.append(("Retry-After", RETRY_AFTER_SECONDS))
        if failure.allow:
            headers.append(("Allow", failure.allow))
        return Answer(failure.status, _error(failure), headers)

    def opening(self, exchange: HttpExchange, first: Part) -> Answer:
        """The head of a stream, of events unless the handler says otherwise."""
        headers = first.headers
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers = [*headers, list(_EVENTS_TYPE)]
        return Answer(first.status, b"", headers, first.reason)

    def last_frame(self, failure: Failure) -> Sequence[bytes]:
        """The event that tells of a failure."""
        return (b"data: ", _error(failure), b"\n\n")


DIALECT: Final = OpenAIDialect()


class OpenAIDoor:
    """Runs the requests of OpenAI's clients.

    Args:
        settings: Limits.
        serving: The models.
        responses: Writes the answers.
        truss: Gets what is for none of the models that declare OpenAI's interface: Trusses have the same paths.
    """

    def __init__(self, settings: Settings, serving: Serving, responses: Responses, truss: TrussDoor) -> None:
        self._serving = serving
        self._responses = responses
        self._truss = truss
        self._max_body = settings.max_request_size

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        claims = _PATHS.__contains__
        return {"v1": Route(self.run, TokenType.inference, claims, DIALECT, methods=("POST",))}

    def run(self, request: Request, path: Path) -> Reply | None:
        """Run a request on the model that its body names; None where no model declares OpenAI's interface."""
        if not self._models():
            return None
        return AfterBody(self._max_body, lambda body: self._run(request, path, body), DIALECT)

    def _run(self, request: Request, path: Path, body: bytes) -> Reply:
        models = self._models()
        name = _name_in(body)
        model = models.get(name)
        if model is None:
            reply = self._truss.serve(request, path, body)
            if reply is not None:
                return reply
            if len(models) != 1:
                raise _unknown(name, models)
            (model,) = models.values()  # the name may be one that the handler knows, such as an adapter's
        headers = (("url_path", "/".join(path)), ("explain", "False"))
        content_type = request.headers.get("Content-Type")
        priority = priorities.of_request(request)
        asked = InferenceRequest(request.raw_headers + headers, body, content_type, by_default=True, priority=priority)
        return HttpExchange(self._responses, DIALECT, request, self._serving, model, asked)

    def _models(self) -> dict[str, ServedModel]:
        return {model.name: model for model in self._serving.models() if model.config.openai}


def _name_in(body: bytes) -> str:
    try:
        name = read_member(body, "model")
    except UnreadableJson:
        return ""
    return name if isinstance(name, str) else ""


def _unknown(name: str, models: dict[str, ServedModel]) -> DoorError:
    message = f"The model {name!r} does not exist. Models of OpenAI's interface: {', '.join(models)}."
    return DoorError(Failure(404, "ModelNotFoundException", message, "model_not_found"))


def _error(failure: Failure) -> bytes:
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.cause or None}
    return json.dumps({"error": error}).encode()
