"""Predictions at the paths that SageMaker calls, with its sessions (`sagemaker_sessions`).

    /invocations                    /models/{model}/invoke
    GET /execution-parameters       what a batch transform may ask of this server

The query's parameters become values of the handler's row. The default version answers.
"""

from collections.abc import Iterator
from typing import Final

from torchserve_py.apis.probes.probes_endpoints import check_loaded
from torchserve_py.apis.sagemaker.form_fields import FORM_TYPE, MULTIPART_TYPE, form_field
from torchserve_py.apis.sagemaker.sagemaker_sessions import SageMakerSessions, short_content
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.content_encodings import CONTENT_ENCODING, undo_encoding
from torchserve_py.endpoints.failures import EndpointError, bad_request
from torchserve_py.endpoints.predictions import PREDICTING, InferenceEndpoints, Pairs, only_startup_model, takes_encoded
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, EndpointContext, Endpoints, PathValues, Reply, Route
from torchserve_py.net.http1.request import Request

_MODEL_NAME: Final = "model_name"
_TARGET_MODEL: Final = "X-Amzn-SageMaker-Target-Model"
_ARCHIVE: Final = ".tar.gz"
_MEBIBYTE: Final = 1 << 20


class InvocationsEndpoints(Endpoints):
    """Finds the model that is invoked, and passes the request on to the inference endpoint."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._predictions = InferenceEndpoints(context)
        self._sessions = SageMakerSessions(context)

    def routes(self) -> Iterator[Route]:
        yield Route("/models/{model_name}/invoke", self._invoke, passes_encoding_on=True)
        yield Route("/invocations", self._invocations, passes_encoding_on=True)
        yield Route("/execution-parameters", self._execution_parameters, READING)

    def _invoke(self, request: Request, values: PathValues) -> Reply:
        return self._run(request, values["model_name"], tuple(request.query))

    def _run(self, request: Request, name: str, parameters: Pairs, body: bytes | None = None) -> Reply:
        """Run a model as SageMaker does: a request to a model that keeps sequences may belong to a session."""
        model = self.serving.get(name)
        self.context.account(request, name)  # before anything of the model's sessions is looked at
        if not model.is_stateful or request.method == "OPTIONS":
            return self._predictions.infer(request, name, None, PREDICTING, parameters=parameters, body=body)
        if body is None:
            return lambda body: self._run(request, name, parameters, body)
        if CONTENT_ENCODING in request.headers.raw:
            return self._run_encoded(request, model, parameters, body)
        return self._run_in_session(request, model, parameters, body, body)

    async def _run_encoded(self, request: Request, model: ServedModel, parameters: Pairs, body: bytes) -> Reply:
        """Look at what is in an encoded body; a handler gets it as it was sent nevertheless."""
        if takes_encoded(self.serving, model):
            content = await short_content(request, body)
        else:
            content = body = await undo_encoding(request, body, self.max_body)
        return self._run_in_session(request, model, parameters, body, content)

    def _run_in_session(
        self, request: Request, model: ServedModel, parameters: Pairs, body: bytes, content: bytes
    ) -> Reply:
        """Answer a request that is only about a session, by its ``content``; the model gets the ``body`` of others."""
        answer = self._sessions.answer(request, model, content)
        if answer is not None:
            return answer
        session = self._sessions.of(request, model)
        return self._predictions.infer(
            request, model.name, None, PREDICTING, parameters=parameters, body=body, session=session
        )

    def _invocations(self, request: Request, values: PathValues) -> Reply:
        """Run the model that the query names, else a header, else the only start-up model, else a form field."""
        parameters = tuple(request.query)
        name = next((value for key, value in parameters if key == _MODEL_NAME and value), None)
        if name is None:
            name = request.headers.get(_TARGET_MODEL, "").removesuffix(_ARCHIVE) or only_startup_model(self.serving)
        if name is None and request.content_type in (FORM_TYPE, MULTIPART_TYPE):
            return lambda body: self._invoke_named(request, parameters, body)
        if name is None:
            raise unnamed(self.serving)
        return self._run(request, name, parameters)

    def _execution_parameters(self, request: Request, values: PathValues) -> Answer:
        """Return how many records of which size a batch transform may send simultaneously."""
        name = only_startup_model(self.serving)
        if name is None:
            raise unnamed(self.serving)
        status = self.serving.status(self.serving.get(name))
        return json_answer(
            {
                "MaxConcurrentTransforms": max(1, sum(worker.ready for worker in status.workers)),
                "BatchStrategy": "MULTI_RECORD",
                "MaxPayloadInMB": self.settings.max_request_size // _MEBIBYTE,
            }
        )

    def _invoke_named(self, request: Request, parameters: Pairs, body: bytes) -> Reply:
        """Run the model that a field of a form names."""
        name = form_field(request.headers.get("Content-Type", ""), body, _MODEL_NAME)
        if name is None:
            raise unnamed(self.serving)
        return self._run(request, name, parameters, body)


def unnamed(serving: Serving) -> EndpointError:
    """Return the error for a request that names no model where there is not one to be meant.

    Raises EndpointError: the model that may be meant could not be loaded.
    """
    check_loaded(serving)
    return bad_request("Parameter model_name is required.")
