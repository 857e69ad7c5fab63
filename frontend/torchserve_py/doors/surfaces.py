"""The other paths to a prediction: KServe v1 and v2, SageMaker, and TorchServe's oldest ones.

    /v1/models/{model}:predict      /v1/models/{model}:explain       KServe v1
                                    /v2/models/{model}/explain       KServe v2 (`open_inference` has the others)
    /invocations                    /models/{model}/invoke           SageMaker
    /{model}/predict                /{model}/{version}/predict       legacy

All but the last serve the default version. On SageMaker's and the legacy paths the query's parameters become values of
the handler's row; on the others the query is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torchserve_py.doors.answering import AfterBody, Reply
from torchserve_py.doors.errors import DoorError, bad_request
from torchserve_py.doors.form_fields import FORM_TYPE, MULTIPART_TYPE, form_field
from torchserve_py.doors.inference import InferenceDoor, Pairs
from torchserve_py.doors.routing import ANY, Path, Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.settings.table import Settings

_PREDICT: Final[Pairs] = (("explain", "False"),)
_EXPLAIN: Final[Pairs] = (("explain", "True"),)
_MODEL_NAME: Final = "model_name"


class InferenceSurfaces:
    """Finds the model that a path of one of these protocols means, and passes the request on to the inference door."""

    def __init__(self, settings: Settings, serving: Serving, inference: InferenceDoor) -> None:
        self._serving = serving
        self._inference = inference
        self._max_body = settings.max_request_size

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        token = TokenType.inference
        return {
            "v1": Route(self.kserve_v1, token, _is_kserve_v1),
            "v2": Route(self.kserve_v2, token, _is_kserve_v2),
            "invocations": Route(self.invocations, token, _is_invocations),
            "models": Route(self.invoke, token, _is_invoke),
            ANY: Route(self.legacy, token, _is_legacy),
        }

    def kserve_v1(self, request: Request, path: Path) -> Reply:
        """``/v1/models/{model}:predict`` and ``:explain``."""
        name, _, verb = path[2].rpartition(":")
        return self._inference.infer(request, name, None, _EXPLAIN if verb == "explain" else _PREDICT)

    def kserve_v2(self, request: Request, path: Path) -> Reply:
        """``/v2/models/{model}/explain``."""
        return self._inference.infer(request, path[2], None, _EXPLAIN)

    def invoke(self, request: Request, path: Path) -> Reply:
        """``/models/{model}/invoke``."""
        return self._inference.infer(request, path[1], None, _PREDICT, parameters=_query(request))

    def legacy(self, request: Request, path: Path) -> Reply:
        """``/{model}/predict`` and ``/{model}/{version}/predict``."""
        version = path[1] if len(path) == 3 else None
        return self._inference.infer(request, path[0], version, _PREDICT, parameters=_query(request))

    def invocations(self, request: Request, path: Path) -> Reply:
        """``/invocations``: the model that the query names, else the only start-up model, else the one of a form field.

        Raises:
            DoorError: No model is named. (And as `InferenceDoor.infer` does.)
        """
        parameters = _query(request)
        name = next((value for key, value in parameters if key == _MODEL_NAME and value), None)
        if name is None:
            name = self._only_startup_model()
        if name is None and request.content_type in (FORM_TYPE, MULTIPART_TYPE):
            return AfterBody(self._max_body, lambda body: self._invoke_named(request, parameters, body))
        if name is None:
            raise _unnamed()
        return self._inference.infer(request, name, None, _PREDICT, parameters=parameters)

    def _invoke_named(self, request: Request, parameters: Pairs, body: bytes) -> Reply:
        """Run the model that a field of a form names."""
        name = form_field(request.headers.get("Content-Type", ""), body, _MODEL_NAME)
        if name is None:
            raise _unnamed()
        return self._inference.infer(request, name, None, _PREDICT, parameters=parameters, body=body)

    def _only_startup_model(self) -> str | None:
        names = [
            each.name
            for each in self._serving.models()
            if any(model.loaded_at_startup for model in self._serving.versions(each.name))
        ]
        return names[0] if len(names) == 1 else None


def _unnamed() -> DoorError:
    return bad_request("Parameter model_name is required.")


def _is_kserve_v1(path: Path) -> bool:
    return len(path) == 3 and path[1] == "models" and path[2].endswith((":predict", ":explain"))


def _is_kserve_v2(path: Path) -> bool:
    return len(path) == 4 and path[1] == "models" and path[3] == "explain"


def _is_invocations(path: Path) -> bool:
    return len(path) == 1


def _is_invoke(path: Path) -> bool:
    return len(path) == 3 and path[2] == "invoke"


def _is_legacy(path: Path) -> bool:
    return len(path) in (2, 3) and path[-1] == "predict"


def _query(request: Request) -> Pairs:
    return tuple(request.query)
