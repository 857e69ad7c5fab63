"""How a failure, which is worded for HTTP, becomes a gRPC status.

A status of TorchServe's services has a description of two lines: the message, and the Java class or a marker by which
TorchServe's clients know the error. ``ts-error-cause`` in the trailing metadata tells causes apart.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from torchserve_py.endpoints.failures import CAUSE_HEADER, INVALID_KEY, Failure
from torchserve_py.net.http2.grpc_status import StatusCode

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


class GrpcRefusal(NamedTuple):
    """A status; ``reason`` is the second line of its description, and ``cause`` tells equal messages apart."""

    code: StatusCode
    message: str
    reason: str = ""
    cause: str = ""

    @property
    def description(self) -> str:
        """The status description of a call."""
        return f"{self.message}\n{self.reason}" if self.reason else self.message

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata of a call."""
        return ((CAUSE_HEADER, self.cause),) if self.cause else ()

    def status(self) -> Status:
        """Return the status as a message, for one request of a call that goes on."""
        detail = Any()
        detail.Pack(ErrorInfo(reason=self.reason, metadata=dict(self.metadata)))
        return Status(code=self.code, message=self.message, details=[detail])


def code_of(status: int, special: Mapping[int, StatusCode] | None = None) -> StatusCode:
    """Return the status code for an HTTP status; ``special`` has the codes in which an API differs."""
    code = (special or {}).get(status) or _CODES.get(status)
    if code is not None:
        return code
    if 400 <= status < 500:
        return StatusCode.FAILED_PRECONDITION
    return StatusCode.INTERNAL if 500 <= status < 600 else StatusCode.UNKNOWN


def torchserve_refusal(failure: Failure, code: StatusCode) -> GrpcRefusal:
    """Return the status of a TorchServe service for a failure, with the name of the Java class."""
    if failure.type == INVALID_KEY:
        return GrpcRefusal(StatusCode.PERMISSION_DENIED, failure.message)
    return GrpcRefusal(code, failure.message, java_name(failure.type), failure.cause)


def java_name(name: str) -> str:
    """Return the name under which TorchServe's clients know an exception; exceptions of this server have no package."""
    package = _JAVA_PACKAGES.get(name)
    return name if package is None else f"{package}.{name}"
