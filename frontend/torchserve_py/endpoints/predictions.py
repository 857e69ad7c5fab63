"""The endpoint for ``/predictions``, ``/explanations``, and TorchServe's oldest path, ``/{model}/predict``.

The raw headers and the raw body go to the worker, which decodes them. This is the server's hottest path: it makes as
few objects as it can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.client_call import HttpCall, TorchServeDialect
from torchserve_py.endpoints.content_encodings import CONTENT_ENCODING, undo_encoding
from torchserve_py.endpoints.openapi import BINARY, Operation, document
from torchserve_py.endpoints.requests import content_type_of
from torchserve_py.endpoints.responses import json_answer
from torchserve_py.endpoints.routing import (
    EndpointContext,
    Endpoints,
    Handler,
    PathValues,
    PredictPath,
    Prepared,
    Reply,
    Route,
)
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.net.http1.request import Request

logger = logging.getLogger(__name__)

Pairs = tuple[tuple[str, str], ...]

PREDICT: Final = Operation(
    "predictions",
    "Predict with the default version of a model",
    (200, 400, 404, 408, 409, 410, 500, 503),
    takes=BINARY,
    gives=BINARY,
    method="POST",
)
EXPLAIN: Final = PREDICT._replace(id="explanations", description="Explain with the default version of a model")
#: What the handler of a prediction, rather than of an explanation, is told about the path.
PREDICTING: Final[Pairs] = (("explain", "False"),)


class RequestSession(NamedTuple):
    """A session that a request belongs to: the sequence of the model, and how the answer tells of it."""

    sequence: SequenceRequest
    dialect: TorchServeDialect


class InferenceEndpoints(Endpoints):
    """Turns HTTP requests into jobs, and the parts of their responses into HTTP answers, in a ``dialect``."""

    def __init__(
        self, context: EndpointContext, dialect: Callable[[str], TorchServeDialect] = TorchServeDialect
    ) -> None:
        super().__init__(context)
        self._sequences = SequenceHeaders(context.settings)
        self._dialect = dialect(self._sequences.id_name)
        #: The models of which a request has named no sequence.
        self._unnamed = context.shared(_no_models)

    def routes(self) -> Iterator[Route]:
        for path, explain, operation in (("/predictions", "False", PREDICT), ("/explanations", "True", EXPLAIN)):
            handler = Prepared(partial(self._prepared, explain))
            yield Route(f"{path}/{{model_name}}", handler, operations=(operation,), passes_encoding_on=True)
            of_version = operation.of_version("the default version", "a version")
            one = f"{path}/{{model_name}}/{{model_version}}"
            yield Route(one, handler, operations=(of_version,), passes_encoding_on=True)
            yield Route(f"{one}/{{rest:path}}", handler, passes_encoding_on=True)
        yield Route("/{model_name}/predict", self._predict, passes_encoding_on=True)
        yield Route("/{model_name}/{model_version}/predict", self._predict, passes_encoding_on=True)

    def _prepared(self, explain: str, values: PathValues) -> Handler:
        name, version = values["model_name"], values.get("model_version")
        headers = (("url_path", values.get("rest", "")), ("explain", explain))
        return lambda request, _: self.infer(request, name, version, headers)

    def _predict(self, request: Request, values: PathValues) -> Reply:
        """Run a request of an oldest path, whose query becomes values of the row."""
        name, version = values["model_name"], values.get("model_version")
        return self.infer(request, name, version, PREDICTING, parameters=tuple(request.query))

    def infer(
        self,
        request: Request,
        name: str,
        version: str | None,
        server_headers: Pairs,
        *,
        parameters: Pairs = (),
        body: bytes | None = None,
        session: RequestSession | None = None,
    ) -> Reply:
        """Run a request on a model; where the method is OPTIONS, describe the model's API instead.

        Args:
            server_headers: What the server tells the handler about the path; wins over the client's headers.
            parameters: Names and values that become values of the row, next to the body's.
            body: The request's body, if it has been read.
            session: The session that the request belongs to, instead of a sequence that it names.
        """
        model = self.serving.get(name, version)
        if request.method == "OPTIONS":
            return json_answer(predict_document(self.context.predict_paths, name))
        if CONTENT_ENCODING in request.headers.raw and (body is None or not takes_encoded(self.serving, model)):
            again = partial(self.infer, request, name, version, server_headers, parameters=parameters, session=session)
            after_body = partial(self._after_encoded, request, model, again)
            return after_body if body is None else after_body(body)
        if body is None:
            body = request.body_at_hand(self.max_body)
        headers = request.raw_headers + server_headers
        context, content_type = self.context, content_type_of(request)
        call = HttpCall(request, context.responses, self._dialect, model, version, headers, None, content_type)
        if session is not None:
            call.sequence, call.dialect = session
            call.headers = headers + session.sequence.headers
        elif model.is_stateful:
            call.sequence = sequence = self._sequences.of(request.headers)
            call.headers = headers + sequence.headers
            if sequence.is_made_up:
                self._note_unnamed(model.name)
        if parameters:
            call.content_type = None
            row = [(key, None, value) for key, value in parameters]

            def submit(body: bytes) -> HttpCall:
                return context.submit(call, [*row, (None, content_type, body)])

            return submit if body is None else submit(body)
        return partial(context.submit, call) if body is None else context.submit(call, body)

    def _after_encoded(
        self, request: Request, model: ServedModel, again: Callable[..., Reply], body: bytes
    ) -> Reply | Coroutine[Any, Any, Reply]:
        """Run a request whose body was encoded, unless its route has undone that."""
        if takes_encoded(self.serving, model) or CONTENT_ENCODING not in request.headers.raw:
            return again(body=body)

        async def decoded() -> Reply:
            return again(body=await undo_encoding(request, body, self.max_body))

        return decoded()

    def _note_unnamed(self, model: str) -> None:
        """Log once for each model that a request named no sequence: the next one finds nothing of it."""
        if model not in self._unnamed:
            self._unnamed.add(model)
            logger.warning(
                "A request of %s named no sequence: it began one of its own, which no request without the header %s"
                " continues",
                model,
                self._sequences.id_name,
            )


def _no_models(context: EndpointContext) -> set[str]:
    return set()


def takes_encoded(serving: Serving, model: ServedModel) -> bool:
    """Return whether a model gets bodies as they were sent: handlers read the header themselves, functions not."""
    return model.contract.handlers and "function" not in serving.declared(model)


def predict_document(others: Sequence[PredictPath], model: str) -> dict[str, Any]:
    """Return the OpenAPI document that says how to predict with a model: at TorchServe's path, and at ``others``."""
    name = quote(model, safe="")
    operations = [(f"/predictions/{name}", "post", PREDICT._replace(id=model))]
    for path, prefix, operation in others:
        operations.append((path(name), "post", operation._replace(id=f"{prefix}{model}")))
    return document(f"RESTful API for: {model}", operations, version="1.0.0")


def only_startup_model(serving: Serving) -> str | None:
    """Return the one model that was loaded at start-up, None if there are several or none."""
    names = [
        each.name for each in serving.models() if any(model.loaded_at_startup for model in serving.versions(each.name))
    ]
    return names[0] if len(names) == 1 else None
