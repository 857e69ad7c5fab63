"""gRPC's standard health service, with the state that ``/ready`` shows over HTTP. Calls need no token."""

import asyncio
import functools
from collections.abc import Collection
from typing import Any, Final

from torchserve_py.apis.grpc.protos import health_pb2
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.net.http2.grpc_messages import MessageLimit
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.rpc import Rpc, RpcMethod
from torchserve_py.net.turns import running_turns

#: The full name of this service.
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
#: The service name that stands for the whole server.
_SERVER: Final = ""
#: How often the state is checked for clients that watch it (seconds).
_INTERVAL: Final = 1.0

_Status = health_pb2.HealthCheckResponse


class HealthService:
    """The state of the services of one server, which is the same for all services."""

    def __init__(self, context: EndpointContext, services: Collection[str]) -> None:
        self._context = context
        self._services = {_SERVER, *services}
        self._is_closed = False
        #: Futures of clients that wait for a change, and whether the server was ready at the latest check.
        self._watchers: set[asyncio.Future[None]] = set()
        self._was_ready = False
        self._timer: asyncio.TimerHandle | None = None
        context.on_leave.append(self._wake)

    def close(self) -> None:
        """Report all services as not serving from now on, and end all watches."""
        self._is_closed = True
        self._wake()

    def methods(self, limit: MessageLimit) -> dict[str, RpcMethod]:
        """Return the methods by path, with a size limit for their messages."""
        read, write = health_pb2.HealthCheckRequest.FromString, _Status.SerializeToString
        served = {"Check": self._check, "Watch": self._watch}
        return {f"/{HEALTH}/{name}": RpcMethod(each, limit, read, write) for name, each in served.items()}

    def _check(self, request: Any, rpc: Rpc) -> Any:
        if request.service in self._services:
            return _Status(status=self._status(request.service))
        rpc.end(StatusCode.NOT_FOUND, f"Unknown service: {request.service}")
        return None  # the call has ended

    async def _watch(self, request: Any, rpc: Rpc) -> None:
        sent = None
        while True:
            status = self._status(request.service)
            if status != sent:
                sent = status
                await rpc.write(_Status(status=status))
            elif self._is_closed:
                return
            else:
                await self._change()

    async def _change(self) -> None:
        """Wait until the state may have changed; one timer checks for all watchers, who may be very many."""
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
        is_ready = self._context.serving.startup_ready()
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            self._wake()
        elif self._watchers:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._look)

    def _wake(self) -> None:
        """Wake the watchers, some in each turn of the event loop."""
        for watcher in self._watchers:
            running_turns().put_off(functools.partial(_wake_one, watcher))
        self._watchers.clear()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        if self._is_closed or self._context.is_leaving or not self._context.serving.startup_ready():
            return _Status.NOT_SERVING
        return _Status.SERVING


def _wake_one(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)
