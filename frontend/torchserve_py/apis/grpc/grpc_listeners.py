"""The two gRPC ports: makes, opens, drains and stops their servers."""

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from torchserve_py.apis.grpc.grpc_ports import listen_error, places, tls_context
from torchserve_py.apis.grpc.grpc_settings import GrpcSettings
from torchserve_py.apis.grpc.health import HEALTH, HealthService
from torchserve_py.apis.grpc.method_table import GrpcMethod, methods_of
from torchserve_py.apis.grpc.open_inference import OpenInferenceService
from torchserve_py.apis.grpc.protos import (
    health_pb2,
    inference_pb2,
    lerobot_pb2,
    management_pb2,
    open_inference_pb2,
    open_inference_repository_pb2,
    open_inference_torchserve_pb2,
    reflection_pb2,
)
from torchserve_py.apis.grpc.reflection import REFLECTION, Reflection
from torchserve_py.apis.grpc.torchserve_inference import InferenceService
from torchserve_py.apis.grpc.torchserve_management import ManagementService
from torchserve_py.apis.grpc.two_way import TwoWayCall
from torchserve_py.apis.lerobot.lerobot_service import LeRobotService
from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.server_settings import default_of
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.net.http2.grpc_messages import LARGEST, MessageLimit
from torchserve_py.net.http2.grpc_server import GrpcServer
from torchserve_py.net.http2.rpc import RpcLimits, RpcMethod

logger = logging.getLogger(__name__)

#: Generated code that defines services, and their methods by name.
_Services = tuple[Any, Mapping[str, GrpcMethod]]

#: The size limit of the messages of health checks and reflection, which need no token.
_SMALL: Final = MessageLimit(4096, "is enough for the name of a service")
#: How long answers that are being written may take when the servers stop (seconds).
_STOP_SECONDS: Final = 5.0


class GrpcListeners:
    """The gRPC endpoints of a running server, with the keys, the repository and the limits of its HTTP endpoints."""

    def __init__(self, context: EndpointContext) -> None:
        #: Setting name (``grpc_inference_port``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        self.context = context
        self._servers: list[tuple[GrpcServer, HealthService]] = []
        self._open_calls: set[TwoWayCall] = set()

    async def open(self) -> None:
        """Listen. Raises ListenError, TlsError: see `start_grpc_listeners`."""
        settings = self.context.settings
        tls = tls_context(settings)
        if tls is not None:  # a key store is for HTTP alone
            self.context.pem_contexts.append(tls)
        inference = InferenceService(settings, self.context.serving, self._open_calls).methods
        open_inference = OpenInferenceService(self.context, self._open_calls).methods
        inference_services = [
            (inference_pb2, inference),
            (open_inference_pb2, open_inference),
            (open_inference_torchserve_pb2, open_inference),
            (open_inference_repository_pb2, open_inference),
            (lerobot_pb2, LeRobotService(self.context).methods),
        ]
        await self._serve("inference", inference_services, tls)
        await self._serve(
            "management", [(management_pb2, ManagementService(self.context.shared(ManagementCalls.of)).methods)], tls
        )

    async def close(self) -> None:
        """Accept no more calls, give answers that are being written a few seconds, and end every call."""
        for _, state in self._servers:
            state.close()
        for rpc in tuple(self._open_calls):
            rpc.close()
        await asyncio.gather(*(server.stop(_STOP_SECONDS) for server, _ in self._servers))
        self._servers.clear()

    async def _serve(self, kind: str, services: Sequence[_Services], context: ssl.SSLContext | None) -> None:
        """Open the port that the settings ``grpc_<kind>_…`` describe."""
        settings, names = self.context.settings, [HEALTH, REFLECTION]
        methods: dict[str, RpcMethod] = {}
        for definition, table in services:
            for service in definition.DESCRIPTOR.services_by_name.values():
                names.append(service.full_name)
                methods |= methods_of(service, table, self.context, _tensor_limit(settings))
        state = HealthService(self.context, names)
        probes = state.methods(_SMALL)
        methods |= probes
        definitions = [health_pb2, reflection_pb2, *(definition for definition, _ in services)]
        methods[f"/{REFLECTION}/ServerReflectionInfo"] = RpcMethod(
            Reflection(names, _pool_of(definitions)).answer,
            _SMALL,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
            takes_stream=True,
        )
        limits = RpcLimits(
            settings.of(GrpcSettings).grpc_max_concurrent_streams,
            float(settings.default_response_timeout),
            _seconds(getattr(settings, f"grpc_{kind}_max_connection_age_ms")),
            _seconds(getattr(settings, f"grpc_{kind}_max_connection_age_grace_ms")),
        )
        limited = self.context.limits(f"grpc_{kind}", for_operators=kind == "management")
        server = GrpcServer(methods, limits, *limited, probes)
        self.context.on_leave.append(server.leave)
        await self._listen(kind, server, context)
        self._servers.append((server, state))

    async def _listen(self, kind: str, server: GrpcServer, context: ssl.SSLContext | None) -> None:
        setting = f"grpc_{kind}_port"
        host, port = places(self.context.settings)[setting]
        try:
            used = await server.listen(host, port, context)
        except OSError as error:
            raise listen_error(setting, host, port, error) from error
        self.addresses[setting] = address = Address("grpc" if context is None else "grpcs", host, used)
        logger.info("%s: listening at %s", setting, address)


async def start_grpc_listeners(context: EndpointContext) -> GrpcListeners:
    """Open the gRPC endpoints.

    Raises ListenError: an address cannot be used; TlsError: the TLS files cannot be used. No endpoint is open then.
    """
    endpoints = GrpcListeners(context)
    try:
        await endpoints.open()
    except BaseException:
        await endpoints.close()
        raise
    return endpoints


def _tensor_limit(settings: Settings) -> MessageLimit:
    """Return the size limit of messages with tensors.

    Clients of the Open Inference Protocol expect no limit. The default of ``max_request_size`` is for TorchServe's
    clients; a value that is configured is for all.
    """
    longest = settings.of(GrpcSettings).grpc_max_message_length
    if longest is not None:
        return MessageLimit(longest, "grpc_max_message_length sets")
    if settings.max_request_size != default_of("max_request_size", Path()):
        return MessageLimit(settings.max_request_size, "max_request_size sets")
    return MessageLimit(LARGEST, "is the most that protobuf can hold")


def _pool_of(definitions: Iterable[Any]) -> DescriptorPool:
    """Return one pool with all definitions, for reflection; their messages are in two."""
    pool = DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for each in file.dependencies:
            add(each)
        pool.AddSerializedFile(file.serialized_pb)

    for definition in definitions:
        add(definition.DESCRIPTOR)
    return pool


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
