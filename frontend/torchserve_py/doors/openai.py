"""The doors for OpenAI's interface: chat, completions and embeddings of models that declare ``openai: true``; models.

    POST /v1/chat/completions   /v1/completions   /v1/embeddings

The body's ``model`` names the model. The handler gets the body, and in the request header ``url_path`` the path, as
under ``/predictions/{model}/{version}/v1/chat/completions``; so `ts.torch_handler.vllm_handler` serves both. It answers
as OpenAI does; a stream is made of server-sent events, which the handler writes.

KServe v1 has the paths of models, too, so their answers have the members of both. `doors.truss` answers for Trusses.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from torchserve_py.doors.failures import DoorError, Failure
from torchserve_py.doors.open_inference.descriptions import model_ready
from torchserve_py.doors.openapi import EVENTS, JSON, OBJECT, TEXT, Operation
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.requests import inference_of, model_in, split_path
from torchserve_py.doors.responses import EVENTS_TYPE, JSON_TYPE, Answer, json_answer
from torchserve_py.doors.routing import READING, AfterBody, Door, DoorContext, PathValues, Route
from torchserve_py.jobs.parts import Part
from torchserve_py.transport.http1.request import Request

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
PATHS: Final = tuple(_OPERATIONS)

_OWNER: Final = "torchserve-py"
_MODEL: Final = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": TEXT, "created": {"type": "integer"}, "ready": {"type": "boolean"}},
}
_ALIVE: Final = Operation("live", "The server is alive")
_LIST: Final = Operation("v1_models", "List the models", (200, 500), gives={JSON: OBJECT})
_SHOW: Final = Operation(
    "v1_model", "Whether a model is ready", (200, 404, 500, 503), gives={JSON: _MODEL}, error=OBJECT
)


class OpenAIDialect(HttpDialect):
    """Errors are ``{"error": {…}}``; within a stream, an event of that shape, which OpenAI's clients raise."""

    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        return Answer(failure.status, _error(failure), (JSON_TYPE,))

    def opening(self, exchange: HttpExchange, first: Part) -> Answer:
        # The content type is that of events unless the handler set one.
        headers = first.headers
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers = [*headers, list(EVENTS_TYPE)]
        return Answer(first.status, b"", headers, first.reason)

    def last_frame(self, failure: Failure) -> Sequence[bytes]:
        return (b"data: ", _error(failure), b"\n\n")


DIALECT: Final = OpenAIDialect()


class OpenAIDoor(Door):
    """Runs the requests of OpenAI's clients."""

    def routes(self) -> Iterator[Route]:
        for path, operation in _OPERATIONS.items():
            yield Route(path, self._run, ("POST",), dialect=DIALECT, operations=(operation,))

    def _run(self, request: Request, values: PathValues) -> AfterBody:
        return lambda body: self._submit(request, body)

    def _submit(self, request: Request, body: bytes) -> HttpExchange:
        """Run a request on the model that its body names, or on the only model of this interface."""
        models = {model.name: model for model in self.serving.models() if model.config.openai}
        name = model_in(body) or ""
        model = models.get(name)
        if model is None:
            if len(models) != 1:
                known = f"Models of OpenAI's interface: {', '.join(models)}." if models else _NO_MODELS
                message = f"The model {name!r} does not exist. {known}"
                raise DoorError(Failure(404, "ModelNotFoundException", message, "model_not_found"))
            (model,) = models.values()  # the name may be one that the handler knows, such as an adapter's
        headers = (("url_path", "/".join(split_path(request.target))), ("explain", "False"))
        return self.context.submit(request, DIALECT, model, inference_of(request, body, headers))


class V1ModelsDoor(Door):
    """Lists the default versions of the models, and says whether they are ready."""

    def __init__(self, context: DoorContext) -> None:
        super().__init__(context)
        #: The ``created`` time that OpenAI's interface demands: here the start of the server, for all models.
        self._created = int(time.time())

    def routes(self) -> Iterator[Route]:
        yield Route("/", self._alive, READING, token=None, operations=(_ALIVE,))
        yield Route("/v1/models", self._list, READING, operations=(_LIST,))
        yield Route("/v1/models/{model_name}", self._show, READING, operations=(_SHOW,))

    def _alive(self, request: Request, values: PathValues) -> Answer:
        return json_answer({"status": "alive"})

    def _list(self, request: Request, values: PathValues) -> Answer:
        names = [model.name for model in self.serving.models()]
        return json_answer({"object": "list", "data": [self._described(name) for name in names], "models": names})

    async def _show(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        ready = await model_ready(self.serving, self.serving.get(name))
        return json_answer({**self._described(name), "name": name, "ready": ready}, 200 if ready else 503)

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": _OWNER}


def _error(failure: Failure) -> bytes:
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.cause or None}
    return json.dumps({"error": error}).encode()
