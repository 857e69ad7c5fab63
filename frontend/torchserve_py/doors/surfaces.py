"""The other paths to a prediction: KServe v1 and v2, SageMaker, and TorchServe's oldest ones.

    /v1/models/{model}:predict      /v1/models/{model}:explain       KServe v1
                                    /v2/models/{model}/explain       KServe v2 (`open_inference` has the others)
    /invocations                    /models/{model}/invoke           SageMaker
    the setting `predict_route`                                      Vertex AI, as KServe v1
    /{model}/predict                /{model}/{version}/predict       legacy

All but the last serve the default version. On SageMaker's and the legacy paths the query's parameters become values of
the handler's row; on the others the query is ignored. SageMaker's paths have its sessions (`sagemaker_sessions`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from torchserve_py.core.serving import Serving
from torchserve_py.doors.failures import DoorError, bad_request, not_found
from torchserve_py.doors.form_fields import FORM_TYPE, MULTIPART_TYPE, form_field
from torchserve_py.doors.predictions import EXPLAIN, V1_PREDICT, InferenceDoor, Pairs
from torchserve_py.doors.routing import Door, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.sagemaker_sessions import SageMakerSessions
from torchserve_py.transport.http1.request import Request

_PREDICT: Final[Pairs] = (("explain", "False"),)
_EXPLAIN: Final[Pairs] = (("explain", "True"),)
_MODEL_NAME: Final = "model_name"
#: Where SageMaker opens a WebSocket; `bidirectional_stream` serves it, and `truss` for Trusses.
BIDIRECTIONAL_STREAM: Final = "/invocations-bidirectional-stream"


class InferenceSurfaces(Door):
    """Finds the model for a path of one of these protocols, and passes the request on to the inference door."""

    def __init__(self, context: DoorContext) -> None:
        super().__init__(context)
        self._predictions = InferenceDoor(context)
        self._sessions = SageMakerSessions(context)

    def routes(self) -> Iterator[Route]:
        yield Route("/v1/models/{model_name}:predict", partial(self._infer, _PREDICT), operations=(V1_PREDICT,))
        for path, name in (("/v1/models/{model_name}:explain", "v1"), ("/v2/models/{model_name}/explain", "v2")):
            yield Route(path, partial(self._infer, _EXPLAIN), operations=(EXPLAIN._replace(id=f"{name}_explanations"),))
        yield Route("/v1/models/{model_name}:{verb}", self._refuse)
        yield Route("/models/{model_name}/invoke", self._invoke)
        yield Route("/{model_name}/predict", self._predict_with_query)
        yield Route("/{model_name}/{model_version}/predict", self._predict_with_query)
        yield Route("/invocations", self._invocations)
        if self.settings.predict_route:
            yield Route(self.settings.predict_route, self._predict_only)

    def _infer(self, headers: Pairs, request: Request, values: PathValues) -> Reply:
        return self._predictions.infer(request, values["model_name"], None, headers)

    def _predict_only(self, request: Request, values: PathValues) -> Reply:
        name = only_startup_model(self.serving)
        if name is None:
            raise bad_request("There is not exactly one model that was loaded at start-up: name the model in the path.")
        return self._predictions.infer(request, name, None, _PREDICT)

    def _predict_with_query(self, request: Request, values: PathValues) -> Reply:
        name, version = values["model_name"], values.get("model_version")
        return self._predictions.infer(request, name, version, _PREDICT, parameters=tuple(request.query))

    def _invoke(self, request: Request, values: PathValues) -> Reply:
        return self._run(request, values["model_name"], tuple(request.query))

    def _run(self, request: Request, name: str, parameters: Pairs, body: bytes | None = None) -> Reply:
        """Run a model as SageMaker does: a request to a model that keeps sequences may belong to a session."""
        model = self.serving.get(name)
        if not model.is_stateful or request.method == "OPTIONS":
            return self._predictions.infer(request, name, None, _PREDICT, parameters=parameters, body=body)
        if body is None:
            return lambda body: self._run(request, name, parameters, body)
        answer = self._sessions.answer(request, model, body)
        if answer is not None:
            return answer
        session = self._sessions.of(request, model)
        return self._predictions.infer(request, name, None, _PREDICT, parameters=parameters, body=body, session=session)

    def _refuse(self, request: Request, values: PathValues) -> Reply:
        raise not_found()

    def _invocations(self, request: Request, values: PathValues) -> Reply:
        """Run the model that the query names, else the only start-up model, else the one of a form field."""
        parameters = tuple(request.query)
        name = next((value for key, value in parameters if key == _MODEL_NAME and value), None)
        if name is None:
            name = only_startup_model(self.serving)
        if name is None and request.content_type in (FORM_TYPE, MULTIPART_TYPE):
            return lambda body: self._invoke_named(request, parameters, body)
        if name is None:
            raise unnamed()
        return self._run(request, name, parameters)

    def _invoke_named(self, request: Request, parameters: Pairs, body: bytes) -> Reply:
        """Run the model that a field of a form names."""
        name = form_field(request.headers.get("Content-Type", ""), body, _MODEL_NAME)
        if name is None:
            raise unnamed()
        return self._run(request, name, parameters, body)


def only_startup_model(serving: Serving) -> str | None:
    """Return the one model that was loaded at start-up, None if there are several or none."""
    names = [
        each.name for each in serving.models() if any(model.loaded_at_startup for model in serving.versions(each.name))
    ]
    return names[0] if len(names) == 1 else None


def unnamed() -> DoorError:
    """Return the error for a request that names no model where there is not one to be meant."""
    return bad_request("Parameter model_name is required.")
