"""What a gRPC client is told when something goes wrong, made from what an HTTP client is told.

Status codes and the two lines of the description are TorchServe's where it has some (specification 8.3): among others
it answers INTERNAL to predictions of unknown models and to overload. ``ts-error-cause`` in the trailing metadata tells
causes apart. `StreamPredictions2` says the same for one request of many in a ``google.rpc.Status`` inside the response.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from torchserve_py.core.errors import NotEnoughDevices, WorkersFailed
from torchserve_py.doors.errors import HANDLER_ERROR, Failure, failure_of
from torchserve_py.doors.management_calls import ModelApiDisabledError
from torchserve_py.scheduling.effects import Cause

CAUSE_KEY: Final = "ts-error-cause"


class Refusal(NamedTuple):
    """``reason`` is the second line of TorchServe's description: a Java class, or a marker; may be empty."""

    code: StatusCode
    message: str
    reason: str
    cause: str

    @property
    def description(self) -> str:
        """The status description of a call."""
        return f"{self.message}\n{self.reason}" if self.reason else self.message

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata of a call."""
        return ((CAUSE_KEY, self.cause),) if self.cause else ()

    def status(self) -> Status:
        """The same for one request of a call that goes on."""
        info = ErrorInfo(reason=self.reason, metadata=dict(self.metadata))
        detail = Any()
        detail.Pack(info)
        number: int = self.code.value[0]
        return Status(code=number, message=self.message, details=[detail])


_INVALID_KEY: Final = "InvalidKeyException"
_ARCHIVE: Final = "org.pytorch.serve.archive"
_HTTP: Final = "org.pytorch.serve.http"
_JAVA_PACKAGES: Final = {
    "BadRequestException": _HTTP,
    "ConflictStatusException": _HTTP,
    "DownloadArchiveException": _ARCHIVE,
    "InternalServerException": _HTTP,
    "InvalidModelException": f"{_ARCHIVE}.model",
    "InvalidModelVersionException": _HTTP,
    "ModelException": f"{_ARCHIVE}.model",
    "ModelNotFoundException": f"{_ARCHIVE}.model",
    "ModelVersionNotFoundException": f"{_ARCHIVE}.model",
    "RequestTimeoutException": _HTTP,
    "ServiceUnavailableException": _HTTP,
    "WorkerInitializationException": "org.pytorch.serve.wlm",
}

#: What TorchServe answers before a request is queued, by exception name: the second line.
_BEFORE_QUEUEING: Final = {
    "BadRequestException": "BadRequestException.()",
    "ModelNotFoundException": f"{_ARCHIVE}.model.ModelNotFoundException",
    "ModelVersionNotFoundException": f"{_ARCHIVE}.model.ModelVersionNotFoundException",
}
_NOT_QUEUED: Final = frozenset({Cause.no_worker, Cause.queue_full, Cause.sequence_queue_full, Cause.sequence_capacity})

_CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.ABORTED,
    413: StatusCode.RESOURCE_EXHAUSTED,
    416: StatusCode.OUT_OF_RANGE,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
#: Where management calls differ: TorchServe says UNKNOWN, nothing more.
_MANAGEMENT_CODES: Final = {**_CODES, 408: StatusCode.DEADLINE_EXCEEDED, 409: StatusCode.ALREADY_EXISTS}
#: Where the Open Inference service differs: 422 is a message whose parts do not fit together.
_OPEN_INFERENCE_CODES: Final = {
    **_CODES,
    408: StatusCode.DEADLINE_EXCEEDED,
    422: StatusCode.INVALID_ARGUMENT,
}
_OPEN_INFERENCE_CAUSES: Final = {
    Cause.worker_died: StatusCode.UNAVAILABLE,
    Cause.response_timeout: StatusCode.DEADLINE_EXCEEDED,
}


def refuse_prediction(failure: Failure) -> Refusal:
    """What the client of a prediction is told."""
    cause = failure.cause
    if not cause and failure.type in _BEFORE_QUEUEING:
        return Refusal(StatusCode.INTERNAL, failure.message, _BEFORE_QUEUEING[failure.type], "")
    if cause in _NOT_QUEUED:
        return Refusal(StatusCode.INTERNAL, failure.message, "InternalServerException.()", cause)
    if cause == Cause.client_timeout:
        return Refusal(StatusCode.DEADLINE_EXCEEDED, failure.message, _java_name(failure.type), cause)
    return _refuse(failure, _code(_CODES, failure.status))


def refuse_open_inference(error: Exception) -> Refusal:
    """What the client of an Open Inference call is told: nothing of TorchServe's, but codes that mean what they say."""
    failure = failure_of(error)
    code = _code(_OPEN_INFERENCE_CODES, failure.status)
    if isinstance(error, ModelApiDisabledError):
        message = "Models cannot be loaded or unloaded: the server's setting enable_model_api is false."
        return Refusal(StatusCode.PERMISSION_DENIED, message, "", failure.cause)
    if failure.cause == HANDLER_ERROR and failure.status == 503:  # TorchServe's status for an exception in a handler
        code = StatusCode.INTERNAL
    elif failure.cause in _OPEN_INFERENCE_CAUSES:
        code = _OPEN_INFERENCE_CAUSES[Cause(failure.cause)]
    elif failure.type == _INVALID_KEY:
        code = StatusCode.PERMISSION_DENIED
    return Refusal(code, failure.message, "", failure.cause)


def refuse_management(error: Exception) -> Refusal:
    """What the client of a management call is told."""
    failure = failure_of(error)
    if isinstance(error, ModelApiDisabledError):
        return Refusal(StatusCode.PERMISSION_DENIED, "Model API disabled", _java_name("ModelException"), failure.cause)
    if isinstance(error, (WorkersFailed, NotEnoughDevices)):
        message = f"Error while creating workers: {failure.message}"
        return Refusal(StatusCode.INTERNAL, message, _java_name(failure.type), "")
    return _refuse(failure, _code(_MANAGEMENT_CODES, failure.status))


def _refuse(failure: Failure, code: StatusCode) -> Refusal:
    if failure.type == _INVALID_KEY:
        return Refusal(StatusCode.PERMISSION_DENIED, failure.message, "", "")
    return Refusal(code, failure.message, _java_name(failure.type), failure.cause)


def _java_name(name: str) -> str:
    """The name under which TorchServe's clients know an exception; ours have no package."""
    package = _JAVA_PACKAGES.get(name)
    return name if package is None else f"{package}.{name}"


def _code(codes: dict[int, StatusCode], status: int) -> StatusCode:
    code = codes.get(status)
    if code is not None:
        return code
    if 200 <= status < 300:  # an error that says that it is none
        return StatusCode.UNKNOWN
    if 400 <= status < 500:
        return StatusCode.FAILED_PRECONDITION
    return StatusCode.INTERNAL if 500 <= status < 600 else StatusCode.UNKNOWN
