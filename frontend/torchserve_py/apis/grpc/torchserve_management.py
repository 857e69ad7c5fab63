"""The management service. A number of zero and an empty text mean "not given", except for ``optional`` numbers."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from torchserve_py.apis.grpc.grpc_call import GrpcDialect
from torchserve_py.apis.grpc.method_table import GrpcMethod
from torchserve_py.apis.grpc.protos import management_pb2 as messages
from torchserve_py.apis.grpc.refusals import GrpcRefusal, code_of, java_name, torchserve_refusal
from torchserve_py.core.serving.errors import NotEnoughDevices, WorkersFailed
from torchserve_py.endpoints.failures import failure_of
from torchserve_py.endpoints.management.management_calls import Done, ManagementCalls, ModelApiDisabledError
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.rpc import Rpc

#: A response as JSON.
_Response = dict[str, Any]

#: Codes that differ from those of predictions. (TorchServe's is UNKNOWN.)
_CODES: Final = {408: StatusCode.DEADLINE_EXCEEDED, 409: StatusCode.ALREADY_EXISTS}


class ManagementDialect(GrpcDialect):
    """How management calls fail; they never become jobs."""

    def refusal(self, error: Exception) -> GrpcRefusal:
        failure = failure_of(error)
        if isinstance(error, ModelApiDisabledError):
            disabled = java_name("ModelException")
            return GrpcRefusal(StatusCode.PERMISSION_DENIED, "Model API disabled", disabled, failure.cause)
        if isinstance(error, WorkersFailed) and error.status == 409:  # another call has changed their number
            return torchserve_refusal(failure, StatusCode.ABORTED)
        if isinstance(error, (WorkersFailed, NotEnoughDevices)):
            message = f"Error while creating workers: {failure.message}"
            return GrpcRefusal(StatusCode.INTERNAL, message, java_name(failure.type))
        return torchserve_refusal(failure, code_of(failure.status, _CODES))


DIALECT: Final = ManagementDialect()


class ManagementService:
    """Turns messages into management calls; raises what these raise, and `EndpointError` for invalid values."""

    def __init__(self, calls: ManagementCalls) -> None:
        self._calls = calls

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        serve: dict[str, Callable[..., Any]] = {
            "DescribeModel": self._describe,
            "ListModels": self._list,
            "RegisterModel": self._register,
            "ScaleWorker": self._scale,
            "SetDefault": self._set_default,
            "UnregisterModel": self._unregister,
        }
        return {name: GrpcMethod(each, DIALECT, TokenType.management) for name, each in serve.items()}

    async def _describe(self, request: messages.DescribeModelRequest, rpc: Rpc) -> _Response:
        name, version = request.model_name, request.model_version or None
        return _json(await self._calls.describe(name, version, customized=request.customized))

    def _list(self, request: messages.ListModelsRequest, rpc: Rpc) -> _Response:
        return _json(self._calls.page(_given(request)))

    async def _register(self, request: messages.RegisterModelRequest, rpc: Rpc) -> _Response:
        """Register a model; unlike over HTTP, without waiting for its workers unless the request says so."""
        self._calls.check_model_api()
        for field, value in request.ListFields():
            if type(value) is int and value < 0:  # not given, as in TorchServe
                request.ClearField(field.name)
        return _done(await self._calls.register({"synchronous": False, **_given(request)}))

    async def _scale(self, request: messages.ScaleWorkerRequest, rpc: Rpc) -> _Response:
        return _done(await self._calls.scale(request.model_name, request.model_version or None, _given(request)))

    async def _set_default(self, request: messages.SetDefaultRequest, rpc: Rpc) -> _Response:
        return _done(await self._calls.set_default(request.model_name, request.model_version))

    async def _unregister(self, request: messages.UnregisterModelRequest, rpc: Rpc) -> _Response:
        return _done(await self._calls.unregister(request.model_name, request.model_version or None))


def _given(request: Message) -> dict[str, Any]:
    return {field.name: value for field, value in request.ListFields()}


def _done(done: Done) -> _Response:
    return {"msg": done.text}


def _json(value: Any) -> _Response:
    return {"msg": json.dumps(value, indent=2, ensure_ascii=False)}
