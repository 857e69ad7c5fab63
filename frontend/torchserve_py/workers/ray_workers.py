"""Workers that Ray places on the nodes of a cluster, and that connect back to this server.

Ray chooses the node, counts its processors and GPUs, and tells of its end; `ts.ray_host` runs there. Nothing secret
passes through Ray: a worker's key is made on its node, and the server signs its certificate.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from torchserve_py.version import __version__
from torchserve_py.workers.launchers import Torchrun
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.model_archives import ModelArchives
from torchserve_py.workers.process import describe_exit, log_lines
from torchserve_py.workers.startup import WorkerFailed
from ts.ray_host import STDERR, STDOUT

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long the address of the cluster may take to answer (seconds).
_REACH_LIMIT: Final = 10.0
#: How long an attempt to place a worker takes (seconds). Its demand stays with Ray until the next one.
_PLACE_LIMIT: Final = 10.0
#: How long the files may take to get to a node and the process to start there (seconds).
_START_LIMIT: Final = 600.0
#: How long Ray may take to end what is left (seconds).
_LEAVE_LIMIT: Final = 10.0
#: How long Ray may take to tell of the end of a worker that was killed (seconds).
_KILL_LIMIT: Final = 5.0
#: Pieces of output that wait to be logged.
_MOST_UNREAD: Final = 32


@dataclass(frozen=True)
class Demand:
    """What a worker needs of its node: the options of Ray's actors with the same names."""

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        amounts = [f"{amount:g} {name}" for name, amount in wanted.items() if amount]
        labels = [f"label {name}={value}" for name, value in self.label_selector.items()]
        return ", ".join([*amounts, *labels]) or "nothing in particular"


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

        left = _in_thread(ray.shutdown)
        await asyncio.wait([left], timeout=_LEAVE_LIMIT)
        if not left.done():
            logger.error("The Ray cluster does not answer: the server ends without having left it")
            left.cancel()
            atexit.unregister(ray.shutdown)

    def forget(self, worker_id: str) -> None:
        """Withdraw the demand of a place that is no more."""
        if (actor := self._unplaced.pop(worker_id, None)) is not None:
            _end(actor)

    async def host(self, worker_id: str, demand: Demand, token: str) -> tuple[Any, bytes]:
        """Return an actor on a node with room for a worker, and the worker's certificate.

        Raises WorkerFailed: no node has room at present, or the node cannot run the worker.
        """
        actor = self._unplaced.pop(worker_id, None)
        try:
            async with asyncio.timeout(_PLACE_LIMIT):
                actor = actor or await _in_thread(partial(_new_actor, demand))
                version, request = await actor.certificate_request.remote()
        except TimeoutError:
            if actor is None:
                raise WorkerFailed(503, "the Ray cluster does not answer", unplaced=True) from None
            self._unplaced[worker_id] = actor
            text = f"no node of the Ray cluster has room for it yet; it needs {demand}"
            raise WorkerFailed(503, text, unplaced=True) from None
        except BaseException as error:  # Ray has many errors
            _end(actor)
            if not isinstance(error, Exception):
                raise
            raise WorkerFailed(500, f"Ray cannot run it: {_first_line(error)}") from error
        if version != __version__:
            _end(actor)
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
            _end(actor)
            raise WorkerFailed(500, f"it could not be started within {_START_LIMIT:g} s") from None
        except BaseException as error:  # Ray has many errors
            _end(actor)
            if not isinstance(error, Exception):
                raise
            raise WorkerFailed(500, f"it could not be started: {_first_line(error)}") from error
        if problem:
            _end(actor)
            raise WorkerFailed(500, f"it could not be started: {problem}")

    def forget_files(self, model_dir: Path) -> None:
        """Let Ray drop a model's files: no further worker needs them."""
        self._archives.forget(model_dir)


@dataclass(frozen=True)
class RemoteLaunch:
    """How a worker is started on a node of a cluster."""

    cluster: RayCluster
    demand: Demand
    model_dir: Path
    environment: Mapping[str, str]
    torchrun: Torchrun | None

    def launcher(self) -> list[str]:
        """Return what comes before the worker's own command line, the interpreter left out."""
        if self.torchrun is None:
            return []
        logs = Path(tempfile.gettempdir()) / self.torchrun.log_dir.name
        return replace(self.torchrun, log_dir=logs).wrap("", [])[1:]


class RemoteProcess:
    """A worker process on a node.

    Attributes:
        pid: -1; its number means nothing on this machine.
    """

    pid = -1

    def __init__(self, actor: Any, label: str) -> None:
        self._actor = actor
        self._killed = asyncio.Event()
        self._ended: asyncio.Future[int] = asyncio.ensure_future(_result(actor.run.remote()))
        streams = {STDOUT: OutputStream(), STDERR: OutputStream()}
        self._output = asyncio.gather(
            self._read(streams),
            log_lines(streams[STDOUT], f"{label}-stdout", logging.INFO),
            log_lines(streams[STDERR], f"{label}-stderr", logging.WARNING),
        )

    @classmethod
    async def launch(cls, remote: RemoteLaunch, worker_id: str, token: str, label: str) -> RemoteProcess:
        """Have Ray place the worker, and start it.

        Raises WorkerFailed: no node has room, or it could not be started.
        """
        actor, certificate = await remote.cluster.host(worker_id, remote.demand, token)
        await remote.cluster.start(actor, certificate, remote)
        return cls(actor, label)

    def adopt(self, pid: int) -> None:
        """Do nothing: the processes of a worker end with its actor."""

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return not self._ended.done() and not self._killed.is_set()

    async def wait(self) -> str:
        """Wait for the end of the process and of its output; return why it ended."""
        killed: asyncio.Future[Any] = asyncio.create_task(self._killed.wait())
        await asyncio.wait([self._ended, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        await asyncio.wait([self._ended], timeout=_KILL_LIMIT)
        await asyncio.wait([self._output], timeout=1.0)
        self._output.cancel()
        _end(self._actor)
        if not self._ended.done():
            self._ended.cancel()
            return "was given up with its node, which does not answer"
        if (error := self._ended.exception()) is not None:
            return f"was lost with its node or the actor there: {_first_line(error)}"
        return describe_exit(self._ended.result())

    def kill(self) -> None:
        """Have the actor end the process; `wait` ends an actor that does not answer."""
        if self.running:
            self._killed.set()
            self._actor.kill.remote()

    async def _read(self, streams: Mapping[int, OutputStream]) -> None:
        try:
            while True:
                for number, data in await self._actor.output.remote():
                    if number not in streams:
                        return
                    await streams[number].pieces.put(data)
        except Exception as error:  # the actor is gone: `wait` says why
            logger.debug("The output of a worker has ended: %s", _first_line(error))
        finally:
            for stream in streams.values():
                await stream.pieces.put(b"")


class OutputStream:
    """What a process on a node prints."""

    def __init__(self) -> None:
        self.pieces = asyncio.Queue[bytes](_MOST_UNREAD)

    async def read(self, _: int = -1, /) -> bytes:
        """Wait for further output; b'' at its end."""
        return await self.pieces.get()


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


def _new_actor(demand: Demand) -> Any:
    import ray

    from ts.ray_host import WorkerHost

    options: dict[str, Any] = {"num_cpus": demand.num_cpus, "num_gpus": demand.num_gpus}
    if demand.resources:
        options["resources"] = dict(demand.resources)
    if demand.label_selector:
        options["label_selector"] = dict(demand.label_selector)
    return ray.remote(WorkerHost).options(max_restarts=0, **options).remote()


def _end(actor: Any) -> None:
    """End an actor, unless there is none yet, and do not wait for that."""
    import ray

    if actor is not None:
        _in_thread(partial(ray.kill, actor)).add_done_callback(asyncio.Future.exception)


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run in a daemon thread what blocks while the head of the cluster does not answer, which may be for ever."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(settle_with: Callable[[Any], None], result: object) -> None:
        if not outcome.done():
            settle_with(result)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], object] = (outcome.set_result, call())
        except Exception as error:
            settled = (outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="ray", daemon=True).start()
    return outcome


async def _result(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, whose messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
