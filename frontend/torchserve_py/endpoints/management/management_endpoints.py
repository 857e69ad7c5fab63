"""The management endpoint: register, scale, describe, list, unregister, set the default version; new tokens.

`ManagementCalls` does what is asked for.
"""

from collections.abc import Iterator
from typing import Final

from torchserve_py.endpoints.credentials import key_of
from torchserve_py.endpoints.management.management_calls import Done, ManagementCalls
from torchserve_py.endpoints.management.parameters import of_query, of_query_or_json
from torchserve_py.endpoints.openapi import OBJECT, TEXT, Operation, Parameter, described, document
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import ANY_METHOD, EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

_MODEL: Final = "/models/{model_name}"
_VERSION: Final = f"{_MODEL}/{{model_version}}"
#: The largest number that the settings of models take.
_MOST: Final = 2**31 - 1
_SYNCHRONOUS: Final = Parameter(
    "synchronous", "Whether the answer waits until the change is done", "boolean", default=False
)
_IGNORED_SYNCHRONOUS: Final = _SYNCHRONOUS._replace(has_effect=False)
_TIMEOUT: Final = Parameter(
    "timeout",
    "Accepted for compatibility: the server waits as long as its settings say",
    "integer",
    default=-1,
    has_effect=False,
)
PAGE: Final = (
    Parameter("limit", "The most entries to list, at most 100", "integer", default=100),
    Parameter("next_page_token", "The nextPageToken of the page before", "integer", least=0),
)
_REGISTER: Final = Operation(
    "registerModel",
    "Register a model",
    (200, 202, 206, 400, 404, 405, 409, 500, 507),
    (
        Parameter("url", "Archive in the model store, folder, or URL", required=True, least=1),
        Parameter("model_name", "Name to register it under; otherwise the archive's"),
        Parameter("handler", "Handler to use; otherwise the archive's"),
        Parameter("runtime", "Runtime to use; otherwise the archive's", choices=("PYTHON", "PYTHON3")),
        Parameter("batch_size", "The most requests in one batch", "integer", 1, least=1, most=_MOST),
        Parameter("max_batch_delay", "Milliseconds that a batch waits to be full", "integer", 100, least=0, most=_MOST),
        Parameter("response_timeout", "Seconds that an inference may take", "integer", 2, least=1, most=_MOST),
        Parameter("startup_timeout", "Seconds that loading may take", "integer", 120, least=1, most=_MOST),
        Parameter("initial_workers", "Workers to start", "integer", 0, least=0, most=_MOST),
        _SYNCHRONOUS,
        Parameter("s3_sse_kms", "Not supported: a presigned URL needs none", "boolean", choices=(False,)),
    ),
)
_INTEGER: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_WORKER: Final = {
    "type": "object",
    "required": ["id", "startTime", "status"],
    "properties": {
        **dict.fromkeys(("id", "startTime", "status", "gpuUsage", "failure"), TEXT),
        **dict.fromkeys(("memoryUsage", "pid", "gpuMemoryUsage"), _INTEGER),
        "gpu": _FLAG,
        "sleep": {"type": "object", "properties": {"state": TEXT, "since": TEXT}},
    },
}
#: A version of a model, see `management_calls`.
_MODEL_SCHEMA: Final = {
    "type": "object",
    "required": ["modelName", "modelVersion", "modelUrl", "minWorkers", "maxWorkers", "workers", "jobQueueStatus"],
    "properties": {
        **dict.fromkeys(("modelName", "modelVersion", "modelUrl", "runtime", "parallelType", "deviceType"), TEXT),
        **dict.fromkeys(("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "parallelLevel"), _INTEGER),
        **dict.fromkeys(("responseTimeout", "startupTimeout", "maxRetryTimeoutInSec"), _INTEGER),
        **dict.fromkeys(("clientTimeoutInMills", "sequenceMaxIdleMSec", "sequenceTimeoutMSec"), _INTEGER),
        **dict.fromkeys(("maxNumSequence", "maxSequenceJobQueueSize"), _INTEGER),
        **dict.fromkeys(("continuousBatching", "useJobTicket", "useVenv", "stateful", "loadedAtStartup"), _FLAG),
        "deviceIds": {"type": "array", "items": _INTEGER},
        "sequenceStates": {
            "type": "object",
            "required": ["store"],
            "properties": {"store": TEXT, "stepsWrite": TEXT, "migrates": {"type": "boolean"}},
        },
        "workers": {"type": "array", "items": _WORKER},
        "jobQueueStatus": {
            "type": "object",
            "required": ["remainingCapacity", "pendingRequests"],
            "properties": {"remainingCapacity": _INTEGER, "pendingRequests": _INTEGER},
        },
        "customizedMetadata": OBJECT,
    },
}
_MODELS_SCHEMA: Final = {
    "type": "object",
    "required": ["models"],
    "properties": {
        "nextPageToken": TEXT,
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["modelName", "modelUrl"],
                "properties": {"modelName": TEXT, "modelUrl": TEXT},
            },
        },
    },
}
_LIST: Final = Operation("listModels", "List the models", (200, 400, 500), PAGE, gives={JSON: _MODELS_SCHEMA})
_DESCRIBE: Final = Operation(
    "describeModel",
    "Describe a model",
    (200, 400, 404, 500, 503),
    (Parameter("customized", "Whether to ask the handler, too", "boolean", default=False),),
    gives={JSON: {"type": "array", "items": _MODEL_SCHEMA}},
)
_SCALE: Final = Operation(
    "setAutoScale",
    "Set how many workers a model has",
    (200, 202, 206, 400, 404, 500, 507),
    (
        Parameter("min_worker", "The fewest workers", "integer", 1, least=0, most=_MOST),
        Parameter("max_worker", "The most workers", "integer", 1, least=0, most=_MOST),
        Parameter("number_gpu", "Accepted for compatibility, without effect", "integer", 0, has_effect=False),
        _SYNCHRONOUS,
        _TIMEOUT,
    ),
)
_UNREGISTER: Final = Operation(
    "unregisterModel", "Unregister a model", (200, 403, 404, 405, 408, 500), (_IGNORED_SYNCHRONOUS, _TIMEOUT)
)
#: Of operations that move requests to other versions.
FORCE: Final = Parameter(
    "force", "Whether requests move even to a version without a ready worker", "boolean", default=False
)
_SET_DEFAULT: Final = Operation(
    "setDefault", "Set the version that serves requests which name none", (200, 400, 404, 409, 500), (FORCE,)
)
_READINESS: Final = Operation(
    "v1_model_readiness",
    "Whether a model has a worker",
    (200, 404, 500),
    gives={JSON: {"type": "object", "required": ["name", "ready"], "properties": {"name": TEXT, "ready": _FLAG}}},
)
_ROTATE: Final = Operation(
    "rotateToken",
    "Replace a key by a new one, which the key file then holds; needs the API key",
    (200, 400),
    (Parameter("type", "The key to replace", choices=("inference", "management"), required=True),),
    gives={},
    method="GET",
)


class ManagementEndpoints(Endpoints):
    """Turns HTTP requests into management calls."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._calls = context.shared(ManagementCalls.of)

    def routes(self) -> Iterator[Route]:
        token = TokenType.management
        yield Route("/models", self._list, ("GET",), token, operations=(_LIST,))
        yield Route("/models", self._register, ("POST",), token, operations=(_REGISTER,))
        for path in (_MODEL, _VERSION):
            for method, handler, operation in (
                ("GET", self._describe, _DESCRIBE),
                ("PUT", self._scale, _SCALE),
                ("DELETE", self._unregister, _UNREGISTER),
            ):
                of_version = operation.of_version("a model", "a version of a model")
                operations = (operation if path == _MODEL else of_version,)
                yield Route(path, handler, (method,), token, operations=operations)
            yield Route(path, self._describe_api, ("OPTIONS",), token)
        yield Route(f"{_VERSION}/set-default", self._set_default, ("PUT",), token, operations=(_SET_DEFAULT,))
        yield Route("/v1/models/{model_name}", self._is_ready, ("GET",), token, operations=(_READINESS,))
        if self.context.tokens is not None:  # a key of its own opens it
            yield Route("/token", self._rotate_token, ANY_METHOD, token=None, operations=(_ROTATE,))

    def _is_ready(self, request: Request, values: PathValues) -> Answer:
        name = values["model_name"]
        status = self.serving.status(self.serving.get(name))
        return json_answer({"name": name, "ready": bool(status.workers) or status.loads_on_demand})

    def _rotate_token(self, request: Request, values: PathValues) -> Answer:
        assert self.context.tokens is not None
        self.context.tokens.rotate(request.parameter("type") or "", key_of(request))
        return Answer(200, b"\n")

    def _list(self, request: Request, values: PathValues) -> Answer:
        return json_answer(self._calls.page(of_query(request, _LIST)))

    async def _register(self, request: Request, values: PathValues) -> Answer:
        self._calls.check_model_api()
        given = await of_query_or_json(request, self.max_body, _REGISTER)
        return _done(await self._calls.register(given))

    async def _scale(self, request: Request, values: PathValues) -> Answer:
        given = of_query(request, _SCALE, "model_version")
        version = values.get("model_version") or request.parameter("model_version") or None
        return _done(await self._calls.scale(values["model_name"], version, given))

    async def _describe(self, request: Request, values: PathValues) -> Answer:
        customized = of_query(request, _DESCRIBE).get("customized", False)
        name, version = values["model_name"], values.get("model_version")
        return json_answer(await self._calls.describe(name, version, customized=customized))

    async def _unregister(self, request: Request, values: PathValues) -> Answer:
        of_query(request, _UNREGISTER)
        return _done(await self._calls.unregister(values["model_name"], values.get("model_version")))

    async def _set_default(self, request: Request, values: PathValues) -> Answer:
        force = of_query(request, _SET_DEFAULT).get("force", False)
        return _done(await self._calls.set_default(values["model_name"], values["model_version"], force=force))

    def _describe_api(self, request: Request, values: PathValues) -> Answer:
        model = self.serving.get(values["model_name"], values.get("model_version"))
        operations = described(route for route in self.routes() if route.path.startswith(_MODEL))
        return json_answer(document(f"RESTful Management API for: {model.name}", operations))


def _done(done: Done) -> Answer:
    return json_answer({"status": done.text}, done.status)
