"""The Open Inference service: all methods but `ModelStreamInfer`.

The request of `ModelInfer` goes to the worker as it came, and the worker's bytes are the response: this is a hot path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.errors import DoorError, Failure
from torchserve_py.doors.grpc import open_inference_answers as answers
from torchserve_py.doors.grpc.calls import Behaviour, Context
from torchserve_py.doors.grpc.metadata import metadata_of
from torchserve_py.doors.grpc.open_inference_jobs import OpenInferenceJobs, not_one_response
from torchserve_py.doors.grpc.open_inference_messages import read_request
from torchserve_py.doors.grpc.protos import open_inference_pb2 as messages
from torchserve_py.doors.open_inference import descriptions, statistics

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.doors.open_inference.repository import Repository
    from torchserve_py.doors.pipeline import Exchange
    from torchserve_py.jobs.parts import Part
    from torchserve_py.settings.table import Settings

#: What this server does not have, and what to do instead.
_UNSUPPORTED: Final = {
    "SystemSharedMemoryStatus": "Shared memory is not supported; send tensors in the message.",
    "SystemSharedMemoryRegister": "Shared memory is not supported; send tensors in the message.",
    "SystemSharedMemoryUnregister": "Shared memory is not supported; send tensors in the message.",
    "CudaSharedMemoryStatus": "Shared memory is not supported; send tensors in the message.",
    "CudaSharedMemoryRegister": "Shared memory is not supported; send tensors in the message.",
    "CudaSharedMemoryUnregister": "Shared memory is not supported; send tensors in the message.",
    "TraceSetting": "Traces cannot be set over this protocol.",
    "LogSettings": "The log cannot be set over this protocol; the setting log_config names its configuration.",
}
#: The methods of the protocol itself, which TorchServe has under a name of its own.
STANDARD_METHODS: Final = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
)  # fmt: skip
#: The methods that MLServer once had a service of their own for.
REPOSITORY_METHODS: Final = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")


class OpenInferenceService:
    """Serves the methods; raises `DoorError`, `ModelError` and `ArchiveError` for what is refused.

    Args:
        settings: What the server's metadata tell about.
        serving: The models.
        jobs: Where requests become jobs.
        repository: What is loaded and unloaded through; the REST door has the same.
    """

    def __init__(self, settings: Settings, serving: Serving, jobs: OpenInferenceJobs, repository: Repository) -> None:
        self._settings = settings
        self._serving = serving
        self._jobs = jobs
        self._repository = repository
        #: Set when the server begins to shut down.
        self.draining = False

    @property
    def methods(self) -> Mapping[str, Behaviour]:
        """What serves each method."""
        return {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
            **{method: _unsupported(message) for method, message in _UNSUPPORTED.items()},
        }

    async def server_live(self, request: Any, context: Context) -> messages.ServerLiveResponse:
        """Whether the server runs."""
        return messages.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, context: Context) -> messages.ServerReadyResponse:
        """Whether it should get traffic."""
        return messages.ServerReadyResponse(ready=not self.draining and self._serving.startup_ready())

    async def model_ready(self, request: messages.ModelReadyRequest, context: Context) -> messages.ModelReadyResponse:
        """Whether a model answers, with its minimum of workers, and says that it is well."""
        model = self._serving.get_latest(request.name, request.version or None)
        return messages.ModelReadyResponse(ready=await descriptions.model_ready(self._serving, model))

    async def server_metadata(self, request: Any, context: Context) -> messages.ServerMetadataResponse:
        """Name, version, extensions."""
        return answers.server_metadata(descriptions.server_metadata(self._settings))

    async def model_metadata(
        self, request: messages.ModelMetadataRequest, context: Context
    ) -> messages.ModelMetadataResponse:
        """Versions, inputs and outputs of a model."""
        version = request.version or None
        return answers.model_metadata(descriptions.model_metadata(self._serving, request.name, version))

    async def model_config(
        self, request: messages.ModelConfigRequest, context: Context
    ) -> messages.ModelConfigResponse:
        """How a model is served."""
        model = self._serving.get_latest(request.name, request.version or None)
        return answers.model_config(descriptions.model_config(self._serving, model))

    async def model_statistics(
        self, request: messages.ModelStatisticsRequest, context: Context
    ) -> messages.ModelStatisticsResponse:
        """What one version, all versions, or all models have done so far."""
        described = statistics.of_models(self._serving, request.name or None, request.version or None)
        return answers.model_statistics(described)

    async def repository_index(
        self, request: messages.RepositoryIndexRequest, context: Context
    ) -> messages.RepositoryIndexResponse:
        """What there is to serve."""
        return answers.repository_index(await self._repository.index(ready_only=request.ready))

    async def repository_model_load(
        self, request: messages.RepositoryModelLoadRequest, context: Context
    ) -> messages.RepositoryModelLoadResponse:
        """Load a model, or load it again."""
        parameters = {}
        for name, value in request.parameters.items():
            choice = value.WhichOneof("parameter_choice")
            parameters[name] = None if choice is None else getattr(value, choice)
        await self._repository.load(request.model_name, parameters)
        return messages.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, request: messages.RepositoryModelUnloadRequest, context: Context
    ) -> messages.RepositoryModelUnloadResponse:
        """Unload every version of a model."""
        await self._repository.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()

    async def model_infer(self, body: bytes, context: Context) -> bytes:
        """One serialized message in, one out.

        Raises:
            DoorError: The request is refused or failed, or the model has not exactly one response to it.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        request = read_request(body)
        jobs = self._jobs
        exchange = jobs.submit(jobs.model(request), request, context.invocation_metadata() or ())
        try:
            part = await exchange.next()
            if part.more or not part.body:
                part = await _only_response(exchange, part)
            if part.headers:
                context.set_trailing_metadata(metadata_of(part.headers))
            return part.body
        finally:
            exchange.cancel()


async def _only_response(exchange: Exchange, part: Part) -> Part:
    """The one response of a model that may give several."""
    found = [part] if part.body else []
    headers = part.headers
    while part.more:
        part = await exchange.next()
        headers = part.headers or headers
        if part.body:
            found.append(part)
        if len(found) > 1:
            raise not_one_response(exchange.model.name, "several")
    if not found:
        raise not_one_response(exchange.model.name, "no")
    return found[0]._replace(headers=headers)


def _unsupported(message: str) -> Behaviour:
    async def refuse(request: Any, context: Context) -> Any:
        raise DoorError(Failure(501, "NotImplementedException", message))

    return refuse
