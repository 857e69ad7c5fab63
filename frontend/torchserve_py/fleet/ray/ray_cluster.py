"""A server's part in a Ray cluster: workers are placed on its nodes, and connect back to this server.

Ray chooses the node, counts its processors and GPUs, and tells of its end; `ts.fleet.ray.ray_host` runs there.
Nothing secret passes through Ray: a worker's key is made on its node, and the server signs its certificate. When the
cluster is lost, the server looks for it until it is there again.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.launch_command import Launch, RankGroup
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.worker_launcher import Launcher
from torchserve_py.fleet.ray.ray_calls import RayCalls, RayError, RayTimeout
from torchserve_py.fleet.ray.ray_demand import demand_of
from torchserve_py.fleet.ray.ray_process import RemoteProcess
from torchserve_py.version import __version__

logger = logging.getLogger(__name__)

#: How long the address of the cluster may take to answer (seconds).
_REACH_LIMIT: Final = 10.0
#: How long Ray may take to join the cluster (seconds).
_JOIN_LIMIT: Final = 60.0
#: How long an attempt to place a worker may take (seconds); `ray_driver` has shorter limits of its own.
_PLACE_LIMIT: Final = 30.0
#: How long the files may take to get to a node and the process to start there (seconds).
_START_LIMIT: Final = 600.0
#: How often the cluster is looked after, and looked for when it is lost (seconds).
_LOOK_INTERVAL: Final = 2.0
#: How long the answer to that may take (seconds); a process that takes longer is replaced.
_LOOK_LIMIT: Final = 60.0


class RayCluster(Launcher):
    """This server's part in a Ray cluster, whose address is as `ray.init` takes it."""

    is_remote = True

    def __init__(self, listener: WorkerListener, address: str, host: str | None) -> None:
        self._listener = listener
        self._address = address
        #: An address of this machine that the nodes reach; None for the one by which Ray knows this machine.
        self._host = host
        self._port = 0
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect to the cluster, and listen for its workers.

        Raises OSError: the packages are missing, there is no such cluster, or the address is not this machine's.
        """
        for package in ("ray", "cryptography"):
            if find_spec(package) is None:
                raise OSError(f"worker_launcher=ray needs {package}: pip install 'torchserve-py[ray]'")
        from torchserve_py.fleet.ray.authority import Authority

        host = await self._connect()
        try:
            self._host = self._host or host
            self._authority = await asyncio.to_thread(Authority)
            context = await asyncio.to_thread(self._authority.server_context)
            self._port = await self._listener.listen(self._host, context)
        except BaseException:
            await self._ray.close()
            raise
        logger.info("Workers are placed by Ray at %s, and connect to %s:%d", self._address, self._host, self._port)
        self._watching = in_background(self._watch(), "watching the Ray cluster")

    async def _connect(self) -> str:
        """Join the cluster; return the address by which Ray knows this machine.

        Raises OSError: there is no such cluster.
        """
        await _reach(self._address)
        ray = await RayCalls.start()
        try:
            host = str(await ray.call("join", self._address, limit=_JOIN_LIMIT))
        except BaseException as error:
            await ray.close()
            if isinstance(error, RayError):
                raise OSError(f"ray_address = {self._address}: {error}") from error
            raise
        self._ray = ray
        return host

    async def _watch(self) -> None:
        """Log whether the head of the cluster answers, and join the cluster again whenever it is lost."""
        while True:
            await self._look_after()
            logger.error(
                "The Ray cluster at %s is lost, with all workers on its nodes: %s. The server joins it again as soon as"
                " it is there",
                self._address,
                self._ray.ended.result(),
            )
            problem = ""
            while self._ray.ended.done():
                await asyncio.sleep(_LOOK_INTERVAL)
                try:
                    await self._connect()
                except OSError as error:
                    if str(error) != problem:
                        logger.warning("The server cannot join the Ray cluster yet: %s", error)
                    problem = str(error)
            logger.info("The server has joined the Ray cluster at %s again", self._address)

    async def _look_after(self) -> None:
        """Log whether the head of the cluster answers, until the cluster is lost."""
        ray, answered = self._ray, True
        while not ray.ended.done():
            await asyncio.wait([ray.ended], timeout=_LOOK_INTERVAL)
            try:
                answers = await ray.call("look", limit=_LOOK_LIMIT)
            except RayTimeout:
                await ray.close()
                continue
            except RayError as error:
                logger.debug("Ray does not describe its nodes: %s", error)
                continue
            if answered and not answers:
                logger.error(
                    "The head of the Ray cluster at %s does not answer. Workers go on as long as their nodes do; what"
                    " is to be placed waits",
                    self._address,
                )
            elif answers and not answered:
                logger.info("The head of the Ray cluster at %s answers again", self._address)
            answered = answers

    async def close(self) -> None:
        """Leave the cluster, which ends all actors of this server."""
        if self._watching is not None:
            self._watching.cancel()
            await self._ray.close()

    def forget_place(self, worker_id: str) -> None:
        """Withdraw the demand of a place that is no more."""
        self._ray.tell("withdraw", worker_id)

    def forget_files(self, model_dir: Path) -> None:
        """Let Ray drop a model's files: no further worker needs them."""
        self._ray.tell("forget_files", str(model_dir))

    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> RemoteProcess:
        """Have Ray find a node for a worker, and start it there.

        Raises WorkerFailed: no node has room at present, or the worker could not be started.
        """
        ray, demand = self._ray, demand_of(launch)
        try:
            placed = await ray.call("place", worker_id, asdict(demand), limit=_PLACE_LIMIT)
        except RayTimeout:
            placed = None
        except RayError as error:
            if ray.ended.done():
                raise WorkerFailed(503, f"the Ray cluster at {self._address} is lost", unplaced=True) from error
            raise WorkerFailed(500, f"Ray cannot run it: {error}") from error
        if placed is None or isinstance(placed, str):
            problem = placed or f"the head of the Ray cluster at {self._address} does not answer"
            raise WorkerFailed(503, problem, unplaced=True)
        number, version, request = placed
        try:
            if version != __version__:
                raise RayError(f"its node has version {version} of torchserve-py, this server has {__version__}")
            problem = await ray.call(
                "start",
                number,
                str(launch.working_dir),
                self._authority.sign(request, token),
                self._authority.certificate,
                (self._host, self._port),
                dict(launch.environment),
                _command(launch.ranks),
                limit=_START_LIMIT,
            )
            if problem:
                raise RayError(problem)
        except BaseException as error:
            ray.tell("end", number)
            if isinstance(error, RayError):
                raise WorkerFailed(500, f"it could not be started: {error}") from error
            raise
        return RemoteProcess(ray, number, label, worker_id)


def _command(ranks: RankGroup | None) -> list[str]:
    """Return what comes before a worker's own command line on a node, the interpreter left out."""
    if ranks is None:
        return []
    return replace(ranks, log_dir=Path(tempfile.gettempdir())).wrap("", [])[1:]


async def _reach(address: str) -> None:
    """Find out whether somebody listens at the address of a cluster, which Ray itself would wait for.

    Raises OSError: nobody does.
    """
    if address.startswith("ray://"):
        raise OSError(f"ray_address = {address} is for Ray's client; the server needs that of the head, HOST:PORT")
    host, separator, port = address.rpartition(":")
    if not separator:
        return
    try:
        async with asyncio.timeout(_REACH_LIMIT):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        reason = error or f"no answer within {_REACH_LIMIT:g} s"
        raise OSError(f"ray_address = {address}: there is no such cluster: {reason}") from None
