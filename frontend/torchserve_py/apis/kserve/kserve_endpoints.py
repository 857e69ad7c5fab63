"""Predictions and explanations at the paths of KServe and Vertex AI.

    /v1/models/{model}:predict      /v1/models/{model}:explain       KServe v1
    GET /v2/models                  /v2/models/{model}/explain       KServe v2 (`open_inference` has the others)
    the setting `predict_route`                                      Vertex AI, as KServe v1

They serve the default version, and ignore the query.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from torchserve_py.apis.kserve.kserve_dialect import KSERVE_DIALECT, KServeDialect
from torchserve_py.apis.kserve.kserve_settings import KServeSettings
from torchserve_py.apis.probes.probes_endpoints import check_loaded
from torchserve_py.endpoints.failures import bad_request, not_found
from torchserve_py.endpoints.openapi import OPEN_INFERENCE_ERROR
from torchserve_py.endpoints.predictions import (
    EXPLAIN,
    PREDICT,
    PREDICTING,
    InferenceEndpoints,
    Pairs,
    only_startup_model,
)
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, EndpointContext, Endpoints, PathValues, PredictPath, Reply, Route
from torchserve_py.net.http1.request import Request

_EXPLAINING: Final[Pairs] = (("explain", "True"),)
_EXPLANATION: Final = EXPLAIN._replace(error=OPEN_INFERENCE_ERROR)
_PREDICTION: Final = PREDICT._replace(id="v1_predictions", error=OPEN_INFERENCE_ERROR)


class KServeEndpoints(Endpoints):
    """Finds the model for a path, and passes the request on to the inference endpoint."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        context.predict_paths.append(PredictPath("/v1/models/{}:predict".format, "v1_", _PREDICTION))
        self._predictions = InferenceEndpoints(context, KServeDialect)

    def routes(self) -> Iterator[Route]:
        return (replace(row, dialect=KSERVE_DIALECT) for row in self._rows())

    def _rows(self) -> Iterator[Route]:
        yield Route("/v2/models", self._list, READING)
        predict = partial(self._infer, PREDICTING)
        yield Route("/v1/models/{model_name}:predict", predict, operations=(_PREDICTION,))
        for path, name in (("/v1/models/{model_name}:explain", "v1"), ("/v2/models/{model_name}/explain", "v2")):
            explain = partial(self._infer, _EXPLAINING)
            yield Route(path, explain, operations=(_EXPLANATION._replace(id=f"{name}_explanations"),))
        yield Route("/v1/models/{model_name}:{verb}", self._refuse)
        if route := self.settings.of(KServeSettings).predict_route:
            yield Route(route, self._predict_only)

    def _list(self, request: Request, values: PathValues) -> Answer:
        return json_answer({"models": [model.name for model in self.serving.models()]})

    def _infer(self, headers: Pairs, request: Request, values: PathValues) -> Reply:
        return self._predictions.infer(request, values["model_name"], None, headers)

    def _predict_only(self, request: Request, values: PathValues) -> Reply:
        name = only_startup_model(self.serving)
        if name is None:
            check_loaded(self.serving)
            raise bad_request("There is not exactly one model that was loaded at start-up: name the model in the path.")
        return self._predictions.infer(request, name, None, PREDICTING)

    def _refuse(self, request: Request, values: PathValues) -> Reply:
        raise not_found()
