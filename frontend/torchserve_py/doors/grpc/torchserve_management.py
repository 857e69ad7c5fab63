"""The management service. A number of zero and an empty text mean "not given", except for ``optional`` numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from grpc import StatusCode

from torchserve_py.core.errors import NotEnoughDevices, WorkersFailed
from torchserve_py.core.serving import RegisterRequest
from torchserve_py.doors.failures import bad_request, failure_of
from torchserve_py.doors.grpc.exchange import GrpcDialect
from torchserve_py.doors.grpc.method_table import GrpcMethod
from torchserve_py.doors.grpc.protos import management_pb2 as messages
from torchserve_py.doors.grpc.refusals import Refusal, code_of, java_name, torchserve_refusal
from torchserve_py.doors.management_calls import ManagementCalls, ModelApiDisabledError
from torchserve_py.doors.token_authorization import TokenType

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call

_DEFAULT_MIN_WORKERS: Final = 1
#: Codes that differ from those of predictions. (TorchServe's is UNKNOWN.)
_CODES: Final = {408: StatusCode.DEADLINE_EXCEEDED, 409: StatusCode.ALREADY_EXISTS}


class ManagementDialect(GrpcDialect):
    """How management calls fail; they never become jobs."""

    def refusal(self, error: Exception) -> Refusal:
        failure = failure_of(error)
        if isinstance(error, ModelApiDisabledError):
            disabled = java_name("ModelException")
            return Refusal(StatusCode.PERMISSION_DENIED, "Model API disabled", disabled, failure.cause)
        if isinstance(error, (WorkersFailed, NotEnoughDevices)):
            message = f"Error while creating workers: {failure.message}"
            return Refusal(StatusCode.INTERNAL, message, java_name(failure.type))
        return torchserve_refusal(failure, code_of(failure.status, _CODES))


DIALECT: Final = ManagementDialect()


class ManagementService:
    """Turns messages into management calls; raises what these raise, and `DoorError` for invalid values."""

    def __init__(self, calls: ManagementCalls) -> None:
        self._calls = calls

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        token = TokenType.management
        return {
            "DescribeModel": GrpcMethod(self.describe_model, DIALECT, token),
            "ListModels": GrpcMethod(self.list_models, DIALECT, token),
            "RegisterModel": GrpcMethod(self.register_model, DIALECT, token),
            "ScaleWorker": GrpcMethod(self.scale_worker, DIALECT, token),
            "SetDefault": GrpcMethod(self.set_default, DIALECT, token),
            "UnregisterModel": GrpcMethod(self.unregister_model, DIALECT, token),
        }

    async def describe_model(self, request: messages.DescribeModelRequest, call: Call) -> messages.ManagementResponse:
        """Describe one version or all, in JSON."""
        described = await self._calls.describe(
            request.model_name, request.model_version or None, customized=request.customized
        )
        return _json(described)

    def list_models(self, request: messages.ListModelsRequest, call: Call) -> messages.ManagementResponse:
        """List the default versions, in JSON."""
        start = _count("next_page_token", request.next_page_token)
        return _json(self._calls.page(request.limit if request.HasField("limit") else None, start))

    async def register_model(self, request: messages.RegisterModelRequest, call: Call) -> messages.ManagementResponse:
        """Register a model; unlike over HTTP, without waiting for its workers unless the request says so."""
        self._calls.check_model_api()
        delay = request.max_batch_delay if request.HasField("max_batch_delay") else -1
        workers = request.initial_workers if request.HasField("initial_workers") else -1
        register = RegisterRequest(
            url=_required("url", request.url),
            model_name=request.model_name or None,
            handler=request.handler or None,
            runtime=request.runtime or None,
            batch_size=_positive(request.batch_size),
            max_batch_delay=delay if delay >= 0 else None,
            initial_workers=workers if workers >= 0 else None,
            synchronous=request.synchronous,
            response_timeout=_positive(request.response_timeout),
            startup_timeout=_positive(request.startup_timeout),
            s3_sse_kms=request.s3_sse_kms,
        )
        return messages.ManagementResponse(msg=(await self._calls.register(register)).text)

    async def scale_worker(self, request: messages.ScaleWorkerRequest, call: Call) -> messages.ManagementResponse:
        """Change the number of workers."""
        given = request.HasField("min_worker")
        min_workers = _count("min_worker", request.min_worker) if given else _DEFAULT_MIN_WORKERS
        given = request.HasField("max_worker")
        max_workers = _count("max_worker", request.max_worker) if given else min_workers
        done = await self._calls.scale(
            request.model_name, request.model_version or None, min_workers, max_workers, synchronous=request.synchronous
        )
        return messages.ManagementResponse(msg=done.text)

    def set_default(self, request: messages.SetDefaultRequest, call: Call) -> messages.ManagementResponse:
        """Set the default version."""
        done = self._calls.set_default(request.model_name, request.model_version)
        return messages.ManagementResponse(msg=done.text)

    async def unregister_model(
        self, request: messages.UnregisterModelRequest, call: Call
    ) -> messages.ManagementResponse:
        """Unregister a version."""
        done = await self._calls.unregister(request.model_name, request.model_version or None)
        return messages.ManagementResponse(msg=done.text)


def _json(value: Any) -> messages.ManagementResponse:
    return messages.ManagementResponse(msg=json.dumps(value, indent=2, ensure_ascii=False))


def _required(name: str, value: str) -> str:
    if not value:
        raise bad_request(f"Parameter {name} is required.")
    return value


def _count(name: str, value: int) -> int:
    if value < 0:
        raise bad_request(f"Parameter {name}: '{value}' is not an integer of at least 0.")
    return value


def _positive(value: int) -> int | None:
    return value if value > 0 else None
