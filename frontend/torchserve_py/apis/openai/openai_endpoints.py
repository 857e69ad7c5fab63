"""The endpoint for OpenAI's interface: chat, completions and embeddings of models that declare ``openai: true``.

    POST /v1/chat/completions   /v1/completions   /v1/embeddings

The body's ``model`` names the model, or is one of `openaiModels` in its configuration, such as an adapter. The handler
gets the body, and in the request header ``url_path`` the path, as under
``/predictions/{model}/{version}/v1/chat/completions``; so `ts.torch_handler.vllm_handler` serves both. It answers as
OpenAI does; a stream is made of server-sent events, which the handler writes. The list of models is KServe's, too:
`apis.kserve` has it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from torchserve_py.apis.openai.openai_keys import ANY_NAME, names_of
from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall, HttpDialect
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.endpoints.openapi import EVENTS, OBJECT, Operation
from torchserve_py.endpoints.requests import asks_for_stream, model_in, split_path
from torchserve_py.endpoints.responses import EVENTS_TYPE, JSON_TYPE, Answer
from torchserve_py.endpoints.routing import AfterBody, EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.sequences import SequenceHeaders, claim_of
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

_NO_MODELS: Final = "No model declares OpenAI's interface (openai: true in its model-config.yaml)."
#: A Truss, which has the same paths, says in a text what is wrong.
OPENAI_ERROR: Final = {"type": "object", "required": ["error"], "properties": {"error": {}}}
_OPERATIONS: Final = {
    path: Operation(
        f"openai_{name}",
        f"{description} of a model that declares OpenAI's interface; the body names it as its model",
        (200, "default"),
        takes={JSON: OBJECT},
        gives={JSON: OBJECT, EVENTS: {"type": "string"}},
        error=OPENAI_ERROR,
        needs_body=True,
    )
    for path, name, description in (
        ("/v1/chat/completions", "chat_completions", "A chat completion"),
        ("/v1/completions", "completions", "A completion"),
        ("/v1/embeddings", "embeddings", "Embeddings"),
    )
}
PATHS: Final = tuple(_OPERATIONS)


class OpenAIDialect(HttpDialect):
    """Errors are ``{"error": {…}}``; within a stream, an event of that shape, which OpenAI's clients raise."""

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        return Answer(failure.status, _error(failure), (JSON_TYPE,))

    def opening(self, call: HttpCall, first: Part) -> Answer:
        # The content type is that of events unless the handler set one.
        headers = first.headers
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers = [*headers, list(EVENTS_TYPE)]
        return Answer(first.status, b"", headers, first.reason)

    def last_frame(self, failure: Failure) -> Sequence[bytes]:
        return (b"data: ", _error(failure), b"\n\n")


DIALECT: Final = OpenAIDialect()


class OpenAIEndpoints(Endpoints):
    """Runs the requests of OpenAI's clients."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self.models = ModelIndex(self.serving, _of_this_interface)
        self.sequences = SequenceHeaders(context.settings)
        self.comment_interval = context.settings.event_comment_interval

    def routes(self) -> Iterator[Route]:
        for path, operation in _OPERATIONS.items():
            yield Route(path, self._run, ("POST",), dialect=DIALECT, operations=(operation,), takes_json=True)

    def _run(self, request: Request, values: PathValues) -> AfterBody:
        return lambda body: self._submit(request, body)

    def _submit(self, request: Request, body: bytes) -> HttpCall:
        """Run a request on the model that its body names."""
        model = self.named(model_in(body) or "")
        headers = (("url_path", "/".join(split_path(request.target))), ("explain", "False"))
        call = self.context.call_of(request, DIALECT, model, headers)
        if model.is_stateful:
            call.sequence = self._sequence(request)
            call.headers = (*call.headers, *call.sequence.headers)
        if self.comment_interval and asks_for_stream(body):
            call.comment_interval = self.comment_interval
        return self.context.submit(call, body)

    def _sequence(self, request: Request) -> SequenceRequest:
        """Return the sequence of a request. One that names none ends with its answer, which does not name it either."""
        sequence = self.sequences.of(request.headers)
        if sequence.id == request.headers.get(self.sequences.id_name):
            return sequence
        return self.sequences.of_values("", None, True, claim_of(request.headers))

    def named(self, name: str) -> ServedModel:
        """Return the model that a request names. Raises EndpointError: none of this interface has the name."""
        models = self.models.get()
        if name in models:
            return models[name]
        is_other = any(model.name == name for model in self.serving.models())
        if ANY_NAME in models and not is_other:
            return models[ANY_NAME]
        if not name and len(only := {model.name: model for model in models.values()}) == 1:
            return next(iter(only.values()))
        named = [each for each in models if each != ANY_NAME]
        if not name:
            message = "The body names no model."
        elif is_other:
            message = f"The model {name!r} does not answer OpenAI's requests."
        else:
            message = f"The model {name!r} does not exist."
        known = f"Models of OpenAI's interface: {', '.join(named)}." if named else _NO_MODELS
        raise EndpointError(Failure(404, "ModelNotFoundException", f"{message} {known}", "model_not_found"))


def _of_this_interface(models: Sequence[ServedModel]) -> dict[str, ServedModel]:
    """Return the models by their names for OpenAI's clients; a model's own name comes before names that others take."""
    own = {model.name: model for model in models if names_of(model)}
    return own | {name: model for model in reversed(models) for name in names_of(model) if name not in own}


def _error(failure: Failure) -> bytes:
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.cause or None}
    if failure.details:  # of a call of Responses or Conversations: which field is wrong, and OpenAI's code
        error |= json.loads(bytes(failure.details))
    return json.dumps({"error": error}).encode()
