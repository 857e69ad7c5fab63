"""The Open Inference service, under its three names.

The serialized request of `ModelInfer` goes to the worker, and the worker's bytes are the response: this is a hot path.
Descriptions are the REST door's, as messages.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict

from torchserve_py.doors.failures import UNAVAILABLE, DoorError, Failure
from torchserve_py.doors.grpc.method_table import GrpcMethod
from torchserve_py.doors.grpc.open_inference_dialect import DIALECT
from torchserve_py.doors.grpc.open_inference_requests import OpenInferenceJobs, read_request, values_of
from torchserve_py.doors.grpc.open_inference_stream import InferStream
from torchserve_py.doors.grpc.protos import open_inference_pb2 as messages
from torchserve_py.doors.grpc.shared_tensors_messages import SharedMemoryMessages, with_raw_contents
from torchserve_py.doors.open_inference import descriptions, statistics
from torchserve_py.doors.open_inference.shared_tensors import REGION
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.transport.http2.grpc_messages import BadMessage
from ts.open_inference.protos.infer_pb2 import InferParameter

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.doors.grpc.two_way import TwoWayCall
    from torchserve_py.doors.open_inference.repository import Repository
    from torchserve_py.doors.open_inference.shared_memory import SharedMemory
    from torchserve_py.settings.table import Settings
    from torchserve_py.transport.http2.call import Call

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
    """Serves the methods; raises `DoorError`, `ModelError` and `ArchiveError` for refused requests.

    Args:
        settings: For the metadata of the server, and the limits of calls.
        repository: Loads and unloads models; the REST door uses the same.
        open_calls: Where calls of `ModelStreamInfer` are entered while they run.
        memory: The shared memory that clients have registered; the REST door uses the same.
    """

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        repository: Repository,
        open_calls: set[TwoWayCall],
        memory: SharedMemory,
    ) -> None:
        self._memory = memory
        self._settings = settings
        self._serving = serving
        self._jobs = OpenInferenceJobs(settings, serving)
        self._repository = repository
        self._open_calls = open_calls
        #: Set when the server begins to shut down.
        self.draining = False

    @property
    def methods(self) -> Mapping[str, GrpcMethod]:
        inference, management = TokenType.inference, TokenType.management
        return {
            "ServerLive": GrpcMethod(self.server_live, DIALECT, inference),
            "ServerReady": GrpcMethod(self.server_ready, DIALECT, inference),
            "ModelReady": GrpcMethod(self.model_ready, DIALECT, inference),
            "ServerMetadata": GrpcMethod(self.server_metadata, DIALECT, inference),
            "ModelMetadata": GrpcMethod(self.model_metadata, DIALECT, inference),
            "ModelInfer": GrpcMethod(self.model_infer, DIALECT, inference, is_raw=True),
            "ModelStreamInfer": GrpcMethod(self.model_stream_infer, DIALECT, inference, is_raw=True),
            "ModelConfig": GrpcMethod(self.model_config, DIALECT, inference),
            "ModelStatistics": GrpcMethod(self.model_statistics, DIALECT, inference),
            "RepositoryIndex": GrpcMethod(self.repository_index, DIALECT, management),
            "RepositoryModelLoad": GrpcMethod(self.repository_model_load, DIALECT, management),
            "RepositoryModelUnload": GrpcMethod(self.repository_model_unload, DIALECT, management),
            "SystemSharedMemoryStatus": GrpcMethod(self.shared_memory_status, DIALECT, inference),
            "SystemSharedMemoryRegister": GrpcMethod(self.shared_memory_register, DIALECT, inference),
            "SystemSharedMemoryUnregister": GrpcMethod(self.shared_memory_unregister, DIALECT, inference),
            **{name: GrpcMethod(_unsupported(advice), DIALECT, inference) for name, advice in _UNSUPPORTED.items()},
        }

    def model_infer(self, body: bytes, call: Call) -> object:
        """Answer one serialized message with one."""
        dialect = DIALECT
        if self._memory.is_enabled and REGION.encode() in body:
            body, outputs = with_raw_contents(self._memory, body, partial(_hold, call))
            dialect = SharedMemoryMessages(self._memory, outputs) if outputs else DIALECT
        request = read_request(body)
        model = self._jobs.model(request)
        return self._jobs.submit(call, dialect, model, request, call.invocation_metadata() or ()).answer()

    def shared_memory_status(
        self, request: messages.SystemSharedMemoryStatusRequest, call: Call
    ) -> messages.SystemSharedMemoryStatusResponse:
        """Describe the regions of shared memory."""
        regions = {each["name"]: each for each in self._memory.status(request.name)}
        return ParseDict({"regions": regions}, messages.SystemSharedMemoryStatusResponse())

    def shared_memory_register(
        self, request: messages.SystemSharedMemoryRegisterRequest, call: Call
    ) -> messages.SystemSharedMemoryRegisterResponse:
        """Register a region of shared memory."""
        self._memory.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    def shared_memory_unregister(
        self, request: messages.SystemSharedMemoryUnregisterRequest, call: Call
    ) -> messages.SystemSharedMemoryUnregisterResponse:
        """Unregister one region of shared memory, or all."""
        self._memory.unregister(request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    def model_stream_infer(self, requests: Any, call: Call) -> Awaitable[None]:
        """Answer any number of serialized messages with any number."""
        settings = self._settings
        size, envelope = settings.max_request_size, settings.grpc_stream_envelope
        return InferStream(self._jobs, call, self._open_calls, size, envelope).run()

    def server_live(self, request: Any, call: Call) -> messages.ServerLiveResponse:
        """Tell that the server runs."""
        return messages.ServerLiveResponse(live=True)

    def server_ready(self, request: Any, call: Call) -> messages.ServerReadyResponse:
        """Tell whether the server should get traffic."""
        return messages.ServerReadyResponse(ready=not self.draining and self._serving.startup_ready())

    async def model_ready(self, request: messages.ModelReadyRequest, call: Call) -> messages.ModelReadyResponse:
        """Tell whether a model has its minimum of workers, and its code says that it is healthy."""
        model = self._serving.get_latest(request.name, request.version or None)
        return messages.ModelReadyResponse(ready=await descriptions.model_ready(self._serving, model))

    def server_metadata(self, request: Any, call: Call) -> messages.ServerMetadataResponse:
        """Describe the server: name, version, extensions."""
        return ParseDict(descriptions.server_metadata(self._settings), messages.ServerMetadataResponse())

    def model_metadata(self, request: messages.ModelMetadataRequest, call: Call) -> messages.ModelMetadataResponse:
        """Describe the versions, inputs and outputs of a model."""
        described = descriptions.model_metadata(self._serving, request.name, request.version or None)
        response = messages.ModelMetadataResponse(
            name=described["name"],
            versions=described["versions"],
            platform=described["platform"],
            parameters=_parameters(described),
        )
        for target, tensors in ((response.inputs, described["inputs"]), (response.outputs, described["outputs"])):
            for tensor in tensors:
                target.add(
                    name=tensor["name"],
                    datatype=tensor["datatype"],
                    shape=tensor["shape"],
                    parameters=_parameters(tensor),
                )
        return response

    def model_config(self, request: messages.ModelConfigRequest, call: Call) -> messages.ModelConfigResponse:
        """Describe how a model is served."""
        model = self._serving.get_latest(request.name, request.version or None)
        return ParseDict({"config": descriptions.model_config(self._serving, model)}, messages.ModelConfigResponse())

    def model_statistics(
        self, request: messages.ModelStatisticsRequest, call: Call
    ) -> messages.ModelStatisticsResponse:
        """Return the statistics of one version, of all versions, or of all models."""
        described = statistics.of_models(self._serving, request.name or None, request.version or None)
        return ParseDict({"model_stats": described}, messages.ModelStatisticsResponse())

    async def repository_index(
        self, request: messages.RepositoryIndexRequest, call: Call
    ) -> messages.RepositoryIndexResponse:
        """List the models that are or can be served."""
        models = await self._repository.index(ready_only=request.ready)
        return ParseDict({"models": models}, messages.RepositoryIndexResponse())

    async def repository_model_load(
        self, request: messages.RepositoryModelLoadRequest, call: Call
    ) -> messages.RepositoryModelLoadResponse:
        """Load a model, or load it again."""
        await self._repository.load(request.model_name, values_of(request.parameters))
        return messages.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, request: messages.RepositoryModelUnloadRequest, call: Call
    ) -> messages.RepositoryModelUnloadResponse:
        """Unload every version of a model."""
        await self._repository.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()


def _hold(call: Call, size: int) -> None:
    """Count bytes that the server holds for a call. Raises DoorError: there is no room for them now."""
    try:
        call.reader.hold(size)
    except BadMessage as error:
        raise DoorError(Failure(429, UNAVAILABLE, str(error), overloaded=True)) from error


def _unsupported(advice: str) -> Callable[[Any, Call], Any]:
    return partial(_refuse, Failure(501, "NotImplementedException", advice))


def _refuse(failure: Failure, request: Any, call: Call) -> None:
    raise DoorError(failure)


def _parameters(described: Mapping[str, Any]) -> dict[str, InferParameter]:
    values: Mapping[str, Any] = described.get("parameters") or {}
    return {name: _parameter(value) for name, value in values.items() if value is not None}


def _parameter(value: Any) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
        case str():
            return InferParameter(string_param=value)
    return InferParameter(string_param=json.dumps(value))
