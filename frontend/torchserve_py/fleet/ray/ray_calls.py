"""The server's end of the process that belongs to a Ray cluster (`ray_driver`): its start, calls to it, and its end."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from pathlib import Path
from typing import Any, Final

from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.launch_command import server_environment, worker_package_root
from torchserve_py.core.workers.process import WorkerProcess, start_child
from torchserve_py.net.running_time import running_time
from ts.protocol.frames import encode

#: How long Ray looks for a head that is gone (seconds; days). The nodes have a limit of their own.
_PATIENCE: Final = {"RAY_gcs_rpc_server_reconnect_timeout_s": "1000000"}
#: How long the process may take to end once it is killed (seconds).
_END_LIMIT: Final = 5.0


class RayError(Exception):
    """A call has failed, or the process has ended."""


class RayTimeout(RayError):
    """There was no answer in time."""


class RayCalls:
    """A process of `ray_driver`, whose output goes to the model log."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._connection: WorkerConnection | None = None
        #: Why the process has ended, once it has.
        self.ended: asyncio.Task[str] = asyncio.create_task(self._end())

    @classmethod
    async def start(cls) -> RayCalls:
        """Start the process. Raises OSError: it could not be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            command = [sys.executable, "-P", "-m", "torchserve_py.fleet.ray.ray_driver", str(theirs.fileno())]
            own = Path(__file__).parents[3], worker_package_root()
            environment = {**_PATIENCE, **server_environment(frozenset(), *own)}
            process = await start_child(command, Path("/"), environment, [theirs.fileno()])
        calls = cls(WorkerProcess(process, "ray"))
        loop = asyncio.get_running_loop()
        _, calls._connection = await loop.create_unix_connection(
            lambda: WorkerConnection(calls._answered, lambda *_: None), sock=ours
        )
        return calls

    async def call(self, name: str, *arguments: Any, limit: float | None = None) -> Any:
        """Call a method of `ray_driver.Driver`; return what it returns.

        Raises RayError: the call has failed; RayTimeout: there was no answer within ``limit`` seconds.
        """
        number = self.tell(name, *arguments)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            await running_time().wait([answer, self.ended], limit)
            if answer.done():
                return answer.result()
            if self.ended.done():
                raise RayError(self.ended.result())
            raise RayTimeout(f"there was no answer within {limit:g} s")
        finally:
            del self._pending[number]

    def tell(self, name: str, *arguments: Any) -> int:
        """Call a method, and do not wait for its answer; return the number of the call."""
        assert self._connection is not None, "the process has been started"
        number = next(self._numbers)
        self._connection.send(encode(["call", number, name, arguments]))
        return number

    def _answered(self, connection: WorkerConnection, message: list[Any]) -> None:
        kind, number, value = message
        answer = self._pending.get(number)
        if answer is None or answer.done():
            return
        if kind == "result":
            answer.set_result(value)
        else:
            answer.set_exception(RayError(value))

    async def close(self) -> None:
        """End the process, and with it all its actors."""
        self._process.kill()
        await asyncio.wait([self.ended], timeout=_END_LIMIT)

    async def _end(self) -> str:
        reason = f"the process that belongs to the Ray cluster {await self._process.wait()}"
        if self._connection is not None:
            self._connection.close()
        return reason
