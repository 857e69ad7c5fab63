"""A server's part in a Ray cluster: workers are placed on its nodes, and connect back to this server.

Ray chooses the node, counts its processors and GPUs, and tells of its end; `ts.ray_host` runs there. Nothing secret
passes through Ray: a worker's key is made on its node, and the server signs its certificate.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torchserve_py.version import __version__
from torchserve_py.workers.launch import Torchrun
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.model_archives import ModelArchives
from torchserve_py.workers.ray_actors import NodeDemand, end_actor, first_line, in_thread, new_actor
from torchserve_py.workers.startup import WorkerFailed

logger = logging.getLogger(__name__)

#: How long the address of the cluster may take to answer (seconds).
_REACH_LIMIT: Final = 10.0
#: How long an attempt to place a worker takes (seconds). Its demand stays with Ray until the next one.
_PLACE_LIMIT: Final = 10.0
#: How long the files may take to get to a node and the process to start there (seconds).
_START_LIMIT: Final = 600.0
#: How long Ray may take to end what is left (seconds).
_LEAVE_LIMIT: Final = 10.0


class RayCluster:
    """This server's part in a Ray cluster.

    Args:
        listener: Where workers of this machine connect.
        address: Of the cluster, as `ray.init` takes it.
        host: An address of this machine that the nodes reach; None for the one by which Ray knows this machine.
    """

    def __init__(self, listener: WorkerListener, address: str, host: str | None) -> None:
        self._listener = listener
        self._address = address
        self._host = host
        self._port = 0
        self._archives = ModelArchives()
        #: Actors without a node, by the place of the worker that they are for.
        self._unplaced: dict[str, Any] = {}

    async def join(self) -> None:
        """Connect to the cluster, and listen for its workers.

        Raises OSError: the packages are missing, there is no such cluster, or the address is not this machine's.
        """
        try:
            import ray

            from torchserve_py.workers.authority import Authority
        except ModuleNotFoundError as error:
            raise OSError(f"worker_launcher=ray needs {error.name}: pip install torchserve-py[ray]") from error
        await _reach(self._address)
        try:
            # In a thread: Ray blocks, and would handle this process's signals itself.
            await asyncio.to_thread(ray.init, self._address, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise OSError(f"ray_address = {self._address}: there is no such cluster: {error}") from error
        # Ray has put its crash handler there, which would abort the server three seconds into its drain.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        self._host = self._host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._authority = await asyncio.to_thread(Authority)
        context = await asyncio.to_thread(self._authority.server_context)
        self._port = await self._listener.listen(self._host, context)
        logger.info("Workers are placed by Ray at %s, and connect to %s:%d", self._address, self._host, self._port)

    async def leave(self) -> None:
        """End all actors of this server, and disconnect."""
        import ray

        left = in_thread(ray.shutdown)
        await asyncio.wait([left], timeout=_LEAVE_LIMIT)
        if not left.done():
            logger.error("The Ray cluster does not answer: the server ends without having left it")
            left.cancel()
            atexit.unregister(ray.shutdown)

    def forget(self, worker_id: str) -> None:
        """Withdraw the demand of a place that is no more."""
        if (actor := self._unplaced.pop(worker_id, None)) is not None:
            end_actor(actor)

    async def host(self, worker_id: str, demand: NodeDemand, token: str) -> tuple[Any, bytes]:
        """Return an actor on a node with room for a worker, and the worker's certificate.

        Raises WorkerFailed: no node has room at present, or the node cannot run the worker.
        """
        actor = self._unplaced.pop(worker_id, None)
        try:
            async with asyncio.timeout(_PLACE_LIMIT):
                actor = actor or await in_thread(partial(new_actor, demand))
                version, request = await actor.certificate_request.remote()
        except TimeoutError:
            if actor is None:
                raise WorkerFailed(503, "the Ray cluster does not answer", unplaced=True) from None
            self._unplaced[worker_id] = actor
            text = f"no node of the Ray cluster has room for it yet; it needs {demand}"
            raise WorkerFailed(503, text, unplaced=True) from None
        except BaseException as error:  # Ray has many errors
            end_actor(actor)
            if not isinstance(error, Exception):
                raise
            raise WorkerFailed(500, f"Ray cannot run it: {first_line(error)}") from error
        if version != __version__:
            end_actor(actor)
            raise WorkerFailed(500, f"its node has version {version} of torchserve-py, this server has {__version__}")
        return actor, self._authority.sign(request, token)

    async def start(self, actor: Any, certificate: bytes, remote: RemoteLaunch) -> None:
        """Start the worker at its node.

        Raises WorkerFailed: it could not be started.
        """
        address = (self._host, self._port)
        try:
            files = await self._archives.of(remote.model_dir)
            async with asyncio.timeout(_START_LIMIT):
                problem = await actor.start.remote(
                    certificate,
                    self._authority.certificate,
                    address,
                    files,
                    dict(remote.environment),
                    remote.launcher(),
                )
        except TimeoutError:
            end_actor(actor)
            raise WorkerFailed(500, f"it could not be started within {_START_LIMIT:g} s") from None
        except BaseException as error:  # Ray has many errors
            end_actor(actor)
            if not isinstance(error, Exception):
                raise
            raise WorkerFailed(500, f"it could not be started: {first_line(error)}") from error
        if problem:
            end_actor(actor)
            raise WorkerFailed(500, f"it could not be started: {problem}")

    def forget_files(self, model_dir: Path) -> None:
        """Let Ray drop a model's files: no further worker needs them."""
        self._archives.forget(model_dir)


@dataclass(frozen=True)
class RemoteLaunch:
    """How a worker is started on a node of a cluster."""

    cluster: RayCluster
    demand: NodeDemand
    model_dir: Path
    environment: Mapping[str, str]
    torchrun: Torchrun | None

    def launcher(self) -> list[str]:
        """Return what comes before the worker's own command line, the interpreter left out."""
        if self.torchrun is None:
            return []
        logs = Path(tempfile.gettempdir()) / self.torchrun.log_dir.name
        return replace(self.torchrun, log_dir=logs).wrap("", [])[1:]


async def _reach(address: str) -> None:
    """Find out whether somebody listens at the address of a cluster, which Ray itself would wait for.

    Raises OSError: nobody does.
    """
    host, separator, port = address.rpartition(":")
    if not separator or "/" in address:
        return
    try:
        async with asyncio.timeout(_REACH_LIMIT):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        reason = error or f"no answer within {_REACH_LIMIT:g} s"
        raise OSError(f"ray_address = {address}: there is no such cluster: {reason}") from None
