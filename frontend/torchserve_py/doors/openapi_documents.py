"""The endpoints that the server tells of, and the OpenAPI documents that are made of them.

Paths, operation ids and parameters are TorchServe's. Where its documents are not valid OpenAPI, or say what is not so,
these are right: an operation id that stands on several paths there has the protocol in front here, defaults have the
type of their parameter, path parameters are declared, the document of a model has its real paths, and what answers is
all there is (the metrics listener has the metrics, an error has the shape of its protocol).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from torchserve_py.doors.openapi import (
    ANY_TYPE,
    BINARY,
    OBJECT,
    OPEN_INFERENCE_ERROR,
    STATUS,
    Endpoint,
    Parameter,
    document,
)
from torchserve_py.version import __version__

#: What the settings of models take at most.
_MOST: Final = 2**31 - 1
_MODEL: Final = Parameter("model_name", "Name of the model", place="path", required=True)
_VERSION: Final = Parameter("model_version", "Version of the model", place="path", required=True)
_SYNCHRONOUS: Final = Parameter(
    "synchronous", "Whether the answer waits until the change is done", "boolean", default=False
)
_TIMEOUT: Final = Parameter(
    "timeout", "Accepted for compatibility: the server waits as long as its settings say", "integer", default=-1
)

_DESCRIPTION: Final = (
    Endpoint("/", "options", "apiDescription", "The OpenAPI description of this listener", (200, 500), answer=OBJECT),
)
_API_DESCRIPTION: Final = (
    Endpoint(
        "/api-description",
        "get",
        "api-description",
        "The OpenAPI description of this listener",
        (200, 500),
        answer=OBJECT,
        deprecated=True,
    ),
)
_METRICS: Final = (
    Endpoint(
        "/metrics",
        "get",
        "metrics",
        "Metrics in Prometheus' text format",
        (200, 500),
        (Parameter("name[]", "Names of the metrics to show, all if none is given", "array"),),
        answer={"type": "string"},
        answer_type="text/plain; version=0.0.4; charset=utf-8",
    ),
)

_PREDICT: Final = Endpoint(
    "/predictions/{model_name}",
    "post",
    "predictions",
    "Predict with the default version of a model",
    (200, 400, 404, 408, 409, 410, 500, 503),
    (_MODEL,),
    answer=BINARY,
    answer_type=ANY_TYPE,
    takes_body=True,
)
_KSERVE: Final = (
    replace(_PREDICT, path="/v1/models/{model_name}:predict", operation_id="v1_predictions"),
    replace(
        _PREDICT,
        path="/v2/models/{model_name}/infer",
        operation_id="v2_predictions",
        statuses=(*_PREDICT.statuses, 422, 501),
        error=OPEN_INFERENCE_ERROR,
    ),
)
_V1_MODEL: Final = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "created": {"type": "integer"}, "ready": {"type": "boolean"}},
}
_V1_MODELS: Final = (
    Endpoint("/", "get", "live", "The server is alive", (200,), answer=STATUS),
    Endpoint("/v1/models", "get", "v1_models", "List the models", (200, 500), answer=OBJECT),
    Endpoint(
        "/v1/models/{model_name}",
        "get",
        "v1_model",
        "Whether a model is ready",
        (200, 404, 500, 503),
        (_MODEL,),
        answer=_V1_MODEL,
        error=OBJECT,
    ),
)
_INFERENCE: Final = (
    *_DESCRIPTION,
    *_V1_MODELS,
    Endpoint("/ping", "get", "ping", "Whether every model has the workers it should have", (200, 500), error=STATUS),
    *_KSERVE,
    _PREDICT,
    replace(
        _PREDICT,
        path="/predictions/{model_name}/{model_version}",
        operation_id="version_predictions",
        description="Predict with a version of a model",
        parameters=(_MODEL, _VERSION),
    ),
    *_API_DESCRIPTION,
)

_MODELS: Final = (
    Endpoint(
        "/models",
        "get",
        "listModels",
        "List the models",
        (200, 400, 500),
        (
            Parameter("limit", "The most models to list, at most 100", "integer", default=100),
            Parameter("next_page_token", "The nextPageToken of the page before", "integer", least=0),
        ),
        answer=OBJECT,
    ),
    Endpoint(
        "/models",
        "post",
        "registerModel",
        "Register a model",
        (200, 202, 206, 400, 404, 405, 409, 500, 507),
        (
            Parameter("url", "Archive in the model store, folder, or URL", required=True, least=1),
            Parameter("model_name", "Name to register it under; otherwise the archive's"),
            Parameter("handler", "Handler to use; otherwise the archive's"),
            Parameter("runtime", "Runtime to use; otherwise the archive's", choices=("PYTHON", "PYTHON3")),
            Parameter("batch_size", "The most requests in one batch", "integer", default=1, least=1, most=_MOST),
            Parameter(
                "max_batch_delay",
                "Milliseconds that a batch waits to be full",
                "integer",
                default=100,
                least=0,
                most=_MOST,
            ),
            Parameter(
                "response_timeout", "Seconds that an inference may take", "integer", default=2, least=1, most=_MOST
            ),
            Parameter("startup_timeout", "Seconds that loading may take", "integer", default=120, least=1, most=_MOST),
            Parameter("initial_workers", "Workers to start", "integer", default=0, least=0, most=_MOST),
            _SYNCHRONOUS,
            Parameter("s3_sse_kms", "Not supported: a presigned URL needs none", "boolean", choices=(False,)),
        ),
    ),
)
_MODEL_METHODS: Final = (
    Endpoint(
        "/models/{model_name}",
        "get",
        "describeModel",
        "Describe a model",
        (200, 404, 500),
        (_MODEL,),
        answer={"type": "array", "items": OBJECT},
    ),
    Endpoint(
        "/models/{model_name}",
        "put",
        "setAutoScale",
        "Set how many workers a model has",
        (200, 202, 206, 400, 404, 500, 507),
        (
            _MODEL,
            Parameter("min_worker", "The fewest workers", "integer", default=1, least=0, most=_MOST),
            Parameter("max_worker", "The most workers", "integer", default=1, least=0, most=_MOST),
            Parameter("number_gpu", "Accepted for compatibility, without effect", "integer", default=0),
            _SYNCHRONOUS,
            _TIMEOUT,
        ),
    ),
    Endpoint(
        "/models/{model_name}",
        "delete",
        "unregisterModel",
        "Unregister a model",
        (200, 403, 404, 405, 408, 500),
        (_MODEL, _SYNCHRONOUS, _TIMEOUT),
    ),
)


def _of_version(endpoint: Endpoint) -> Endpoint:
    return replace(
        endpoint,
        path="/models/{model_name}/{model_version}",
        operation_id=f"version_{endpoint.operation_id}",
        description=endpoint.description.replace("a model", "a version of a model"),
        parameters=(_MODEL, _VERSION, *endpoint.parameters[1:]),
    )


_ONE_MODEL: Final = (
    *_MODEL_METHODS,
    *map(_of_version, _MODEL_METHODS),
    Endpoint(
        "/models/{model_name}/{model_version}/set-default",
        "put",
        "setDefault",
        "Set the version that serves requests which name none",
        (200, 404, 500),
        (_MODEL, _VERSION),
    ),
)
_MANAGEMENT: Final = (*_DESCRIPTION, *_MODELS, *_ONE_MODEL, *_API_DESCRIPTION)

#: The setting that opens a door, and what that door's document lists.
_DOORS: Final = {
    "inference_address": _INFERENCE,
    "management_address": _MANAGEMENT,
    "metrics_address": _METRICS,
}


def listener_document(doors: Iterable[str]) -> dict[str, Any]:
    """The document of a listener, by the names of the settings that open its doors (``inference_address``, …)."""
    return document("TorchServe APIs", __version__, [endpoint for door in doors for endpoint in _DOORS[door]])


def predict_document(model: str) -> dict[str, Any]:
    """How to predict with a model."""
    operation_ids = (model, f"v1_{model}", f"v2_{model}")
    endpoints = (
        replace(
            endpoint,
            path=endpoint.path.replace("{model_name}", quote(model, safe="")),
            operation_id=operation_id,
            parameters=(),
        )
        for endpoint, operation_id in zip((_PREDICT, *_KSERVE), operation_ids, strict=True)
    )
    return document(f"RESTful API for: {model}", "1.0.0", endpoints)


def management_document(model: str) -> dict[str, Any]:
    """How to manage a model."""
    return document(f"RESTful Management API for: {model}", __version__, _ONE_MODEL)
