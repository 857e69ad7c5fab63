"""The process that belongs to a Ray cluster for the server, and owns the actors in which its workers run.

    python -P -m torchserve_py.fleet.ray.ray_driver DESCRIPTOR

It answers the calls of `ray_calls.RayCalls` at the socket with this descriptor, and ends with the server. The server
has no Ray in its own process, because Ray ends the process that it is in, for example when the cluster has a new head.
"""

import asyncio
import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from torchserve_py.base.terminal import tell
from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.fleet.ray.model_archives import ModelArchives
from torchserve_py.fleet.ray.ray_demand import NodeDemand
from ts.fleet.ray.ray_host import WorkerHost
from ts.process.parent_death import die_with_parent
from ts.protocol.frames import encode

T = TypeVar("T")

#: How long an attempt to place a worker takes (seconds). Its demand stays with Ray until the next one.
_PLACE_LIMIT: Final = 10.0
#: After how long an actor that has no place is replaced by another (seconds): Ray may have lost it, for example with a
#: node that died while the actor was on its way there. The next one has twice as long: its node may only be slow.
_ACTOR_LIMIT: Final = 60.0
#: How long the head of the cluster may take to describe the nodes (seconds).
_LOOK_LIMIT: Final = 5.0
#: How long a node may take to accept a connection (seconds).
_CONNECT_LIMIT: Final = 2.0


class _Placing(NamedTuple):
    """An actor that waits for a node, since when (the event loop's clock), and for how long it may (seconds)."""

    task: asyncio.Task[tuple[int, str, bytes]]
    since: float
    limit: float


class Driver:
    """What the server calls: each public method by its name.

    An actor has a number; a place of the server's has the id of its workers.
    """

    def __init__(self) -> None:
        self._archives = ModelArchives()
        self._numbers = itertools.count()
        self._actors: dict[int, Any] = {}
        self._nodes_of: dict[int, str] = {}
        #: Nodes on which a worker has ended, perhaps because the node has died.
        self._suspects: set[str] = set()
        #: What waits for a node.
        self._placing: dict[str, _Placing] = {}
        #: The last actor that was found for a place.
        self._placed: dict[str, int] = {}
        self._looking: asyncio.Future[list[dict[str, Any]]] | None = None
        #: Whether the head of the cluster did not answer when it was asked last.
        self._silent = False
        #: The node that this process belongs to.
        self._node = ""

    async def join(self, address: str) -> str:
        """Connect to the cluster, which blocks; return the address by which Ray knows this machine."""
        import ray

        ray.init(address, log_to_driver=False, configure_logging=False)
        self._node = ray.get_runtime_context().get_node_id()
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    async def look(self) -> bool:
        """Return whether the head of the cluster answers. End this process if its own node has died."""
        nodes = await self._nodes()
        if nodes and not any(node["Alive"] for node in nodes if node["NodeID"] == self._node):
            tell("The node of this machine has left the Ray cluster", to_stderr=True)
            os._exit(1)
        return nodes is not None

    async def _nodes(self) -> list[dict[str, Any]] | None:
        """Return what the head tells of the nodes; None if it does not answer."""
        import ray

        if self._looking is None or self._looking.done():
            self._looking = in_thread(ray.nodes)
        looking = self._looking
        await asyncio.wait([looking], timeout=_LOOK_LIMIT)
        self._silent = not looking.done()
        return None if self._silent else looking.result()

    async def place(self, worker_id: str, demand: Mapping[str, Any]) -> tuple[int, str, bytes] | str | None:
        """Find a node for a worker.

        Return the number of an actor there, the version of the node's package and a certificate signing request; or why
        there is none yet; None: the head does not answer. Until `withdraw`, the demand stays with Ray.
        """
        if self._silent:
            return None
        wanted = NodeDemand(**demand)
        now = asyncio.get_running_loop().time()
        placing = self._placing.get(worker_id)
        if placing is None or (not placing.task.done() and now > placing.since + placing.limit):
            limit = _ACTOR_LIMIT if placing is None else 2 * placing.limit
            await self.withdraw(worker_id)
            placing = _Placing(asyncio.create_task(self._host(wanted)), now, limit)
            self._placing[worker_id] = placing
        await asyncio.wait([placing.task], timeout=_PLACE_LIMIT)
        if placing.task.done():
            self._placing.pop(worker_id, None)
            number, *_ = placed = placing.task.result()
            self._placed[worker_id] = number
            return placed
        nodes = await self._nodes()
        return None if nodes is None else wanted.why_unplaced(nodes)

    async def _host(self, demand: NodeDemand) -> tuple[int, str, bytes]:
        import ray

        kind: Any = ray.remote(WorkerHost)
        options = demand.options(avoid=await self._dead_nodes())
        actor = await in_thread(kind.options(max_restarts=0, **options).remote)
        try:
            node, version, request = await actor.certificate_request.remote()
        except BaseException:
            _kill(actor)
            raise
        number = next(self._numbers)
        self._actors[number], self._nodes_of[number] = actor, node
        return number, version, request

    async def _dead_nodes(self) -> list[str]:
        """Return nodes that have died with a worker, and that the head still believes to live, which takes 15 s."""
        known = await self._nodes() if self._suspects else None
        if known is not None:
            nodes = {node["NodeID"]: node for node in known if node["Alive"]}
            for each in list(self._suspects):
                if each not in nodes or await _listens(nodes[each]):
                    self._suspects.discard(each)
        return sorted(self._suspects)

    async def withdraw(self, worker_id: str) -> None:
        """Look no longer for a node for a worker; end the actor of the last one in its place."""
        if (placing := self._placing.pop(worker_id, None)) is not None:
            placing.task.cancel()
        if (number := self._placed.pop(worker_id, None)) is not None:
            await self.end(number)

    async def start(self, number: int, model_dir: str, *arguments: Any) -> str:
        """Have an actor start its worker with the further arguments of `WorkerHost.start`; return why that failed."""
        files = await self._archives.of(Path(model_dir))
        return str(await self._actors[number].start.remote(files, *arguments))

    async def run(self, number: int) -> int:
        """Wait for the end of the worker process; return its exit status."""
        return int(await self._actors[number].run.remote())

    async def output(self, number: int) -> Sequence[tuple[int, bytes]]:
        """Wait for output of the worker process; return pieces, each with its stream."""
        pieces: Sequence[tuple[int, bytes]] = await self._actors[number].output.remote()
        return pieces

    async def kill(self, number: int) -> None:
        """Have an actor kill its worker process."""
        self._actors[number].kill.remote()

    async def end(self, number: int) -> None:
        """End an actor, and what is left of its worker."""
        if (actor := self._actors.pop(number, None)) is not None:
            self._suspects.add(self._nodes_of.pop(number))
            _kill(actor)

    async def forget_files(self, model_dir: str) -> None:
        """Let Ray drop a model's files."""
        self._archives.forget(Path(model_dir))


async def _listens(node: Mapping[str, Any]) -> bool:
    """Return whether a node takes connections."""
    try:
        async with asyncio.timeout(_CONNECT_LIMIT):
            _, writer = await asyncio.open_connection(node["NodeManagerAddress"], node["NodeManagerPort"])
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _kill(actor: Any) -> None:
    """End an actor, and do not wait for that."""
    import ray

    in_thread(lambda: ray.kill(actor)).add_done_callback(asyncio.Future.exception)


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run in a daemon thread what blocks while the head of the cluster does not answer, which may be for ever."""
    outcome = Future[T]()
    outcome.set_running_or_notify_cancel()  # who waits may be cancelled, the call is not

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="ray", daemon=True).start()
    return asyncio.wrap_future(outcome)


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's, whose messages are long."""
    several = len(error.args) > 1 and all(isinstance(each, str) for each in error.args)
    text = "".join(error.args) if several else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


async def _answer_calls(descriptor: int) -> None:
    """Answer the server's calls until it closes the connection."""
    driver, closed, answering = Driver(), asyncio.Event(), set()

    async def answer(connection: WorkerConnection, number: int, name: str, arguments: list[Any]) -> None:
        try:
            reply = ["result", number, await getattr(driver, name)(*arguments)]
        except Exception as error:  # Ray has many errors
            reply = ["error", number, first_line(error)]
        connection.send(encode(reply))

    def called(connection: WorkerConnection, message: list[Any]) -> None:
        task = asyncio.create_task(answer(connection, *message[1:]))
        answering.add(task)
        task.add_done_callback(answering.discard)

    await asyncio.get_running_loop().create_unix_connection(
        lambda: WorkerConnection(called, lambda *_: closed.set()), sock=socket.socket(fileno=descriptor)
    )
    await closed.wait()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(_answer_calls(int(sys.argv[1])))
    os._exit(0)  # Ray's own end waits for a head that may be gone
