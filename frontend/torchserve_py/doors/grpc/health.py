"""gRPC's standard health service, for load balancers and probes: what ``/ready`` says over HTTP. It needs no token."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from torchserve_py.doors.grpc.calls import Context

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving

#: The name under which the whole server is asked for.
_SERVER: Final = ""
#: How often the state is looked at for a client that watches it (seconds).
_INTERVAL: Final = 1.0

_Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """The state of the services of one server; that is the same for all.

    Args:
        serving: Whose models must be ready.
        services: Their full names.
    """

    def __init__(self, serving: Serving, services: Collection[str]) -> None:
        self._serving = serving
        self._services = {_SERVER, *services}
        self._draining = asyncio.Event()
        self._closed = asyncio.Event()

    def start_draining(self) -> None:
        """The services are out of service from now on."""
        self._draining.set()

    def close(self) -> None:
        """Watching ends."""
        self.start_draining()
        self._closed.set()

    async def Check(self, request: Any, context: Context) -> Any:
        """Whether a service should get traffic."""
        if request.service not in self._services:
            await context.abort(StatusCode.NOT_FOUND, f"Unknown service: {request.service}")
        return _Status(status=self._status(request.service))

    async def Watch(self, request: Any, context: Context) -> None:
        """The same now and after each change."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                await context.write(_Status(status=status))
            if self._closed.is_set():
                return
            waits_for = self._closed if self._draining.is_set() else self._draining
            try:
                async with asyncio.timeout(_INTERVAL):
                    await waits_for.wait()
            except TimeoutError:
                continue

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        if self._draining.is_set() or not self._serving.startup_ready():
            return _Status.NOT_SERVING
        return _Status.SERVING
