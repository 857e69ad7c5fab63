"""Workers that are forked from a warm parent (`ts.core.forking.warm_parent`), which has imported what they need.

A forked worker is a grandchild of the server: the warm parent tells how it ended, and ends with the server itself.
"""

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.core.workers.launch_command import Launch, interpreter, server_environment, worker_package_root
from torchserve_py.core.workers.process import WorkerProcess, describe_exit, start_child
from torchserve_py.net.running_time import running_time
from ts.protocol.messages import FOLDERS_VARIABLE, TOKEN_VARIABLE

logger = logging.getLogger(__name__)

#: Variables that nothing reads while it is imported: a worker may have others than its warm parent.
_READ_LATE: Final = frozenset(("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"))
_OURS: Final = "TS_"
#: How long the warm parent may take to import what a worker needs and to fork it (seconds).
_FORK_LIMIT: Final = 120.0
#: How long the warm parent may take to tell how a worker has ended (seconds): it may be importing modules.
_TELL_LIMIT: Final = 20.0
#: How long the warm parent may take to end, once it is killed (seconds).
_CLOSE_LIMIT: Final = 5.0


def can_fork() -> bool:
    """Return whether this system has what a warm parent needs."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, or an old one
        return False
    return True


async def _told(status: asyncio.StreamReader) -> tuple[str, str]:
    """Wait for a line on the pipe that tells what becomes of a worker; return its first word and the rest.

    Both are empty once the warm parent has ended.
    """
    word, _, rest = (await status.readline()).decode().rstrip("\n").partition(" ")
    return word, rest


def _reap_orphan(pid: int) -> None:
    """Reap a worker whose warm parent has ended: the kernel has killed it, and has made it a child of the server."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class ForkedProcess:
    """A forked worker, in the form of `asyncio.subprocess.Process`."""

    def __init__(
        self, pid: int, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader, status: asyncio.StreamReader
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._status = status

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit status (negative: ended by that signal)."""
        limit = None
        with contextlib.suppress(OSError):  # it has ended already, or there are too many open files
            await _end_of(self.pid)
            limit = _TELL_LIMIT
        word, code = "", ""
        try:
            word, code = await running_time().within(limit, _told(self._status))
        except TimeoutError:
            logger.warning("The warm parent does not tell how the worker with process id %d has ended", self.pid)
        if not word:
            _reap_orphan(self.pid)
        self.returncode = int(code) if word == "exit" else -signal.SIGKILL
        return self.returncode


class Forking:
    """Starts the warm parent with the first worker that it can fork, and again when it has died.

    The warm parent is confined as workers are, and does not see the variables either that are hidden from them.
    """

    def __init__(self, confinement: Confinement, hidden_variables: frozenset[str]) -> None:
        self._confinement = confinement
        self._hidden_variables = hidden_variables
        self._starting = asyncio.Lock()
        #: The warm parent, the socket that it takes orders from, and what waits for its end.
        self._warm: tuple[WorkerProcess, socket.socket, asyncio.Task[None]] | None = None
        #: Whether a warm parent has forked a worker; one that ends before it has will not do better the next time.
        self._has_forked = False

    async def fork(
        self,
        launch: Launch,
        imports: Sequence[str],
        socket_path: Path,
        token: str,
        label: str,
        claims: Sequence[int],
    ) -> ForkedProcess | None:
        """Fork a worker that needs ``imports``; return None if it has to have an interpreter of its own."""
        if not imports or not _is_forkable(launch):
            return None
        order = _order_of(launch, imports, token)
        try:
            return await running_time().within(_FORK_LIMIT, self._forked(socket_path, order, label, claims))
        except TimeoutError:
            logger.error("Worker %s is not forked: the warm parent has taken longer than %g s", label, _FORK_LIMIT)
            await self.close()
            return None
        except OSError as error:
            logger.warning("Worker %s is not forked: %s", label, error)
            return None

    async def _forked(self, socket_path: Path, order: bytes, label: str, claims: Sequence[int]) -> ForkedProcess | None:
        return await self._send(order, await self._start(socket_path), label, claims)

    async def close(self) -> None:
        """End the warm parent, and with it all workers that it has forked."""
        if self._warm is not None:
            parent, orders, watching = self._warm
            orders.close()
            parent.kill()
            await asyncio.wait([watching], timeout=_CLOSE_LIMIT)

    async def _start(self, socket_path: Path) -> socket.socket:
        """Return the socket that a warm parent takes orders from."""
        async with self._starting:
            if self._warm is not None:
                _, orders, watching = self._warm
                if not _is_closed(orders):
                    return orders
                await asyncio.wait([watching], timeout=_CLOSE_LIMIT)
                if not self._has_forked:
                    raise OSError("the warm parent has failed before it could fork one")
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                ours.setblocking(False)
                command = [sys.executable, "-P", "-m", "ts.core.forking.warm_parent", "--socket", str(socket_path)]
                process = await start_child(
                    self._confinement.wrap([*command, "--orders", str(theirs.fileno())]),
                    Path("/"),
                    server_environment(self._hidden_variables, worker_package_root()),
                    [theirs.fileno()],
                )
            parent, self._has_forked = WorkerProcess(process, "warm-parent"), False
            self._warm = parent, ours, in_background(_watch(parent, ours), "watching the warm parent")
            return ours

    async def _send(
        self, order: bytes, orders: socket.socket, label: str, claims: Sequence[int]
    ) -> ForkedProcess | None:
        with ExitStack() as unless_forked:
            readers, theirs = [], []
            try:
                for _ in range(3):
                    ours, end = os.pipe()
                    theirs.append(end)
                    readers.append(await _reader(ours, unless_forked))
                socket.send_fds(orders, [order], [*theirs, *claims])
            finally:
                for end in theirs:
                    os.close(end)
            word, rest = await _told(readers[0])
            if word == "pid":
                unless_forked.pop_all()
                self._has_forked = True
                return ForkedProcess(int(rest), readers[1], readers[2], readers[0])
        if word == "refused":
            logger.info("Worker %s is not forked: %s", label, rest)
            return None
        why = describe_exit(int(rest)) if word == "exit" else "the warm parent has ended"
        raise OSError(f"the forked process has not become a worker: {why}")


def _order_of(launch: Launch, imports: Sequence[str], token: str) -> bytes:
    environment = {**launch.environment, TOKEN_VARIABLE: token}
    all_variables = launch.worker_environment(token)
    environment |= {name: all_variables[name] for name in ("PYTHONPATH", FOLDERS_VARIABLE)}
    order = {"imports": list(imports), "folder": str(launch.working_dir), "environment": environment}
    return json.dumps(order).encode()


def _is_forkable(launch: Launch) -> bool:
    """Return whether a worker has the interpreter, the packages and the launcher that a forked one has."""
    own = launch.venv_python or launch.packages_dir or launch.ranks or launch.cpu_launcher
    early = [name for name in launch.environment if not (name in _READ_LATE or name.startswith(_OURS))]
    return not own and not early and interpreter(launch.runtime) == sys.executable


def _is_closed(connected: socket.socket) -> bool:
    """Return whether an end of a socket is closed; the kernel closes that of a dying process before it ends others."""
    if connected.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connected, 0)
    return bool(poll.poll(0))


async def _end_of(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one.

    Raises OSError: there is no such process, or no descriptor for it.
    """
    process = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


class _PipeProtocol(asyncio.StreamReaderProtocol):
    """Fills a reader; at the end of the pipe the transport closes it, as that of a child's output does."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _reader(end: int, stack: ExitStack) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    pipe = os.fdopen(end, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: _PipeProtocol(reader), pipe)
    stack.callback(transport.close)
    return reader


async def _watch(parent: WorkerProcess, orders: socket.socket) -> None:
    """Wait for the end of the warm parent; nobody wants it to end before the server closes the socket."""
    reason = await parent.wait()
    if orders.fileno() >= 0:
        orders.close()
        logger.error("The warm parent of the workers %s; the workers that it has forked end with it", reason)
