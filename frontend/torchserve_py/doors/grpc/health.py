"""gRPC's standard health service, for load balancers and probes: what ``/ready`` says over HTTP. It needs no token."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from torchserve_py.transport.turns import running_turns

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

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
        self._is_draining = self._is_closed = False
        #: Those who wait for a change, and whether the server was ready when that was last looked at.
        self._watchers: set[asyncio.Future[None]] = set()
        self._was_ready = False
        self._timer: asyncio.TimerHandle | None = None

    def start_draining(self) -> None:
        """The services are out of service from now on."""
        self._is_draining = True
        self._wake()

    def close(self) -> None:
        """Watching ends."""
        self._is_closed = True
        self.start_draining()

    async def Check(self, request: Any, context: ServicerContext[Any, Any]) -> Any:
        """Whether a service should get traffic."""
        if request.service not in self._services:
            await context.abort(StatusCode.NOT_FOUND, f"Unknown service: {request.service}")
        return _Status(status=self._status(request.service))

    async def Watch(self, request: Any, context: ServicerContext[Any, Any]) -> None:
        """The same now and after each change."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                await context.write(_Status(status=status))
            elif self._is_closed:
                return
            else:
                await self._change()

    async def _change(self) -> None:
        """Wait until the state may have changed; one timer looks for all who wait, as they may be very many."""
        loop = asyncio.get_running_loop()
        change = loop.create_future()
        self._watchers.add(change)
        if self._timer is None:
            self._timer = loop.call_later(_INTERVAL, self._look)
        try:
            await change
        finally:
            self._watchers.discard(change)

    def _look(self) -> None:
        self._timer = None
        is_ready = self._serving.startup_ready()
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            self._wake()
        elif self._watchers:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _wake(self) -> None:
        """Wake those who wait, some in each turn of the event loop."""
        for watcher in self._watchers:
            running_turns().put_off(functools.partial(_tell, watcher))
        self._watchers.clear()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        if self._is_draining or not self._serving.startup_ready():
            return _Status.NOT_SERVING
        return _Status.SERVING


def _tell(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)
