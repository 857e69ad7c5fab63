"""The Open Inference service, under its three names.

The serialized request of `ModelInfer` goes to the worker, and the worker's bytes are the response: this is a hot path.
Descriptions are the REST endpoint's, whose JSON becomes messages.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from torchserve_py.apis.grpc.grpc_call import GrpcCall
from torchserve_py.apis.grpc.grpc_settings import GrpcSettings
from torchserve_py.apis.grpc.method_table import GrpcMethod, account_of
from torchserve_py.apis.grpc.open_inference_dialect import DIALECT
from torchserve_py.apis.grpc.open_inference_requests import OpenInferenceJobs, read_request, values_of
from torchserve_py.apis.grpc.open_inference_stream import InferStream
from torchserve_py.apis.grpc.protos import open_inference_pb2 as messages
from torchserve_py.apis.grpc.shared_tensors_messages import SharedMemoryMessages, with_raw_contents
from torchserve_py.apis.grpc.two_way import TwoWayCall
from torchserve_py.apis.open_inference import descriptions
from torchserve_py.apis.open_inference.repository import Repository
from torchserve_py.apis.open_inference.shared_memory import SharedMemory
from torchserve_py.apis.open_inference.shared_tensors import REGION
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure, unsupported
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http2.grpc_messages import BadGrpcMessage
from torchserve_py.net.http2.rpc import Rpc

#: A response as JSON.
_Described = dict[str, Any]

_NO_CUDA: Final = "Shared memory of CUDA is not supported; send tensors in the message."
#: Methods that are not supported, and what a client can do instead.
_UNSUPPORTED: Final = {
    "CudaSharedMemoryStatus": _NO_CUDA,
    "CudaSharedMemoryRegister": _NO_CUDA,
    "CudaSharedMemoryUnregister": _NO_CUDA,
    "TraceSetting": "Traces cannot be set over this protocol.",
    "LogSettings": "The log cannot be set over this protocol; the setting log_config names its configuration.",
}


class OpenInferenceService:
    """Serves the methods; raises `EndpointError`, `ModelError` and `ArchiveError` for refused requests.

    Calls of `ModelStreamInfer` are in ``open_calls`` while they run.
    """

    def __init__(self, context: EndpointContext, open_calls: set[TwoWayCall]) -> None:
        self._context = context
        self._serving = context.serving
        self._memory = context.shared(SharedMemory.of)
        self._repository = context.shared(Repository.of)
        self._jobs = OpenInferenceJobs(context.settings, context.serving)
        self._open_calls = open_calls

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        inference, management = TokenType.inference, TokenType.management
        described: dict[str, Callable[..., Any]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "SystemSharedMemoryStatus": self._shared_memory_status,
            "SystemSharedMemoryRegister": self._shared_memory_register,
            "SystemSharedMemoryUnregister": self._shared_memory_unregister,
            **{name: partial(_refuse, advice) for name, advice in _UNSUPPORTED.items()},
        }
        return {
            "ModelInfer": GrpcMethod(self._model_infer, DIALECT, inference, is_raw=True),
            "ModelStreamInfer": GrpcMethod(self._model_stream_infer, DIALECT, inference, is_raw=True),
            "RepositoryIndex": GrpcMethod(self._repository_index, DIALECT, management),
            "RepositoryModelLoad": GrpcMethod(self._repository_model_load, DIALECT, management),
            "RepositoryModelUnload": GrpcMethod(self._repository_model_unload, DIALECT, management),
            **{name: GrpcMethod(serve, DIALECT, inference) for name, serve in described.items()},
        }

    def _model_infer(self, body: bytes, rpc: Rpc) -> GrpcCall:
        dialect = DIALECT
        if self._memory.is_enabled and REGION.encode() in body:
            body, outputs = with_raw_contents(self._memory, body, partial(_hold, rpc))
            dialect = SharedMemoryMessages(self._memory, outputs) if outputs else DIALECT
        request = read_request(body)
        model = self._jobs.model(request)
        return self._jobs.submit(rpc, dialect, model, request, rpc.metadata)

    def _model_stream_infer(self, requests: Any, rpc: Rpc) -> Awaitable[None]:
        settings = self._context.settings
        size, envelope = settings.max_request_size, settings.of(GrpcSettings).grpc_stream_envelope
        return InferStream(self._jobs, rpc, self._open_calls, size, envelope).run()

    def _shared_memory_status(self, request: messages.SystemSharedMemoryStatusRequest, rpc: Rpc) -> _Described:
        return {"regions": {each["name"]: each for each in self._memory.status(request.name)}}

    def _shared_memory_register(self, request: messages.SystemSharedMemoryRegisterRequest, rpc: Rpc) -> _Described:
        self._memory.register(request.name, request.key, request.offset, request.byte_size)
        return {}

    def _shared_memory_unregister(self, request: messages.SystemSharedMemoryUnregisterRequest, rpc: Rpc) -> _Described:
        self._memory.unregister(request.name)
        return {}

    def _server_live(self, request: Any, rpc: Rpc) -> _Described:
        return {"live": True}

    def _server_ready(self, request: Any, rpc: Rpc) -> _Described:
        return {"ready": not self._context.is_leaving and self._serving.startup_ready()}

    async def _model_ready(self, request: messages.ModelReadyRequest, rpc: Rpc) -> _Described:
        model = self._model(request, rpc)
        return {"ready": await descriptions.model_ready(self._serving, model)}

    def _model(self, request: Any, rpc: Rpc) -> ServedModel:
        """Return the described model. Raises EndpointError: the call's key is not for it; ModelError: there is none."""
        account_of(rpc, request.name)
        return self._serving.get_latest(request.name, request.version or None)

    def _server_metadata(self, request: Any, rpc: Rpc) -> _Described:
        return descriptions.server_metadata(self._context.settings)

    def _model_metadata(self, request: messages.ModelMetadataRequest, rpc: Rpc) -> _Described:
        account_of(rpc, request.name)
        described = descriptions.model_metadata(self._serving, request.name, request.version or None)
        for each in (described, *described["inputs"], *described["outputs"]):
            if values := each.get("parameters"):
                each["parameters"] = {name: _parameter(value) for name, value in values.items() if value is not None}
        return described

    def _model_config(self, request: messages.ModelConfigRequest, rpc: Rpc) -> _Described:
        return {"config": descriptions.model_config(self._serving, self._model(request, rpc))}

    def _model_statistics(self, request: messages.ModelStatisticsRequest, rpc: Rpc) -> _Described:
        if request.name:
            account_of(rpc, request.name)
        name, version = request.name or None, request.version or None
        return {"model_stats": descriptions.statistics(self._serving, name, version, partial(account_of, rpc))}

    async def _repository_index(self, request: messages.RepositoryIndexRequest, rpc: Rpc) -> _Described:
        return {"models": await self._repository.index(ready_only=request.ready)}

    async def _repository_model_load(self, request: messages.RepositoryModelLoadRequest, rpc: Rpc) -> _Described:
        await self._repository.load(request.model_name, values_of(request.parameters))
        return {}

    async def _repository_model_unload(self, request: messages.RepositoryModelUnloadRequest, rpc: Rpc) -> _Described:
        await self._repository.unload(request.model_name)
        return {}


def _hold(rpc: Rpc, size: int) -> None:
    """Count bytes that the server holds for a call. Raises EndpointError: there is no room for them now."""
    try:
        rpc.reader.hold(size)
    except BadGrpcMessage as error:
        raise EndpointError(Failure(429, UNAVAILABLE, str(error), overloaded=True)) from error


def _refuse(advice: str, request: Any, rpc: Rpc) -> _Described:
    raise unsupported(advice)


def _parameter(value: Any) -> _Described:
    """Return the JSON of an ``InferParameter``."""
    for kind, name in ((bool, "bool_param"), (int, "int64_param"), (float, "double_param"), (str, "string_param")):
        if isinstance(value, kind):
            return {name: value}
    return {"string_param": json.dumps(value)}
