"""The process of a worker: start it, log what it prints, tell why it ended.

The server starts it, or Ray on another machine (`ray_process`). With the setting ``debug`` a person does, perhaps in a
debugger: the server says how, and waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from torchserve_py.logs.setup import MODEL_LOGGER
from torchserve_py.transport.turns import running_turns
from torchserve_py.workers.batch_tokens import BatchTokens
from torchserve_py.workers.launch import Launch, command_line
from torchserve_py.workers.startup import WorkerFailed
from ts.protocol.log_records import record_of
from ts.protocol.messages import CLAIMS_VARIABLE
from ts.protocol.server_identity import started

if TYPE_CHECKING:
    from torchserve_py.workers.forking import ForkedProcess
    from torchserve_py.workers.ray_process import OutputStream, RemoteProcess

logger = logging.getLogger(__name__)
model_log = logging.getLogger(MODEL_LOGGER)

#: Seconds; as long as a person may want, in numbers that timers can hold.
NO_LIMIT = 10 * 365 * 24 * 3600.0
_READ_SIZE = 64 * 1024
_LEVELS: Final = {"stdout": logging.INFO, "stderr": logging.WARNING}
#: What records of workers say besides level and message.
_TOLD = ("request_id", "sequence_id", "request_ids", "sequence_ids", "exception")


async def start_process(
    launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
) -> StartedProcess:
    """Start a worker's process, which claims what it is sent ahead with ``tokens``.

    Raises WorkerFailed: it could not be started, or no machine has room.
    """
    if launch.remote is not None:
        from torchserve_py.workers.ray_process import RemoteProcess  # most servers do without

        return RemoteProcess(*await launch.remote.cluster.start(worker_id, launch.remote, token), label, worker_id)
    try:
        if launch.by_hand:
            logger.warning("Start worker %s by hand:\n\n%s\n", label, command_line(launch, socket, token))
            return HandStarted()
        return await WorkerProcess.launch(launch, socket, token, worker_id, label, tokens)
    except OSError as error:
        raise WorkerFailed(500, f"worker {label} could not be started: {error}") from error


class WorkerProcess:
    """A running process whose standard output and error go to the model log, line by line.

    It leads a process group of its own, and the processes that it has started in there end with it. Launchers put the
    processes that they start in groups of their own: each of these ends with it, too, once its leader was adopted.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process | ForkedProcess,
        label: str,
        worker_id: str = "",
        *,
        forked: bool = False,
    ) -> None:
        self._process = process
        #: The leaders of the process groups that end with it, and when each was started (None: it is our own child).
        self._leaders: dict[int, str | None] = {process.pid: started(process.pid) if forked else None}
        assert process.stdout is not None
        assert process.stderr is not None
        self._pumps = asyncio.gather(
            log_lines(process.stdout, "stdout", label, worker_id),
            log_lines(process.stderr, "stderr", label, worker_id),
        )

    @classmethod
    async def launch(
        cls, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None = None
    ) -> WorkerProcess:
        """Start the process, which claims what it is sent ahead with ``tokens``.

        Raises OSError: it could not be started.
        """
        claims = () if tokens is None else tokens.worker_ends
        if launch.forking is not None:
            forked = await launch.forking.fork(launch, socket, token, label, claims)
            if forked is not None:
                return cls(forked, label, worker_id, forked=True)
        environment = launch.worker_environment(token)
        if claims:
            environment[CLAIMS_VARIABLE] = ",".join(map(str, claims))
        process = await start_child(launch.command(socket), launch.working_dir, environment, claims)
        return cls(process, label, worker_id)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def adopt(self, pid: int) -> None:
        """Let the process group that ``pid`` leads end with this process; ``pid`` is what the kernel has told."""
        self._leaders.setdefault(pid, started(pid))

    @property
    def running(self) -> bool:
        """Whether the process has not been reaped yet."""
        return self._process.returncode is None

    async def wait(self) -> str:
        """Wait for the end of the process and of its output; return why it ended."""
        code = await self._process.wait()
        self._kill_groups()
        # A process that left its group may hold the pipes open after the worker is gone.
        await asyncio.wait([self._pumps], timeout=1.0)
        self._pumps.cancel()
        return describe_exit(code)

    def kill(self) -> None:
        """Send SIGKILL to the process and all that end with it, unless it is gone."""
        if self.running:
            self._kill_groups()

    def _kill_groups(self) -> None:
        for leader, known in self._leaders.items():
            now = started(leader)
            if known is not None and now is not None and now != known:
                continue  # the process has ended, and its number is another's
            try:
                os.killpg(leader, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
                logger.debug("Process group %d has ended already", leader)


async def start_child(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], descriptors: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start a process that leads a session of its own, inherits ``descriptors``, and whose output is read here.

    Raises OSError: it could not be started.
    """
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=environment,
        start_new_session=True,
        pass_fds=descriptors,
    )


class HandStarted:
    """Stands for the process that a person starts; it lives as long as its connection."""

    pid = -1  # which process it is turns out when it connects

    def __init__(self) -> None:
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def adopt(self, pid: int) -> None:
        """Leave the process alone: the person who started it ends it."""

    @property
    def running(self) -> bool:
        """Whether it has not been given up."""
        return not self._ended.done()

    async def wait(self) -> str:
        """Wait until it is given up."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Give it up; when its connection closes it ends by itself."""
        if self.running:
            self._ended.set_result("has gone")


StartedProcess: TypeAlias = "HandStarted | WorkerProcess | RemoteProcess"


def describe_exit(code: int) -> str:
    """Say in words what an exit status means (negative: ended by that signal)."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"was killed by {name}, probably because the machine ran out of memory"
    return f"was killed by {name}"


async def log_lines(stream: asyncio.StreamReader | OutputStream, source: str, label: str, worker_id: str) -> None:
    """Log every line, some in each turn of the event loop; one longer than what is read at once is logged in pieces.

    ``source`` is stdout or stderr; ``worker_id`` is empty for a process that is no worker.
    """
    about = {"worker": f"{label}-{source}", "of_worker": worker_id, "source": source}
    turns, rest = running_turns(), b""
    while data := await stream.read(_READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) >= _READ_SIZE:
            lines.append(rest)
            rest = b""
        end = turns.end_of_slice()
        for line in lines:
            _log_line(line.decode("utf-8", "replace").rstrip("\r"), _LEVELS[source], about)
            if monotonic() > end:
                await turns.next()
                end = turns.end_of_slice()
    if rest:
        _log_line(rest.decode("utf-8", "replace"), _LEVELS[source], about)


def _log_line(line: str, level: int, about: Mapping[str, Any]) -> None:
    """Log a printed line; a line that is a log record keeps its level and its ids."""
    record = record_of(line)
    if record is None:
        model_log.log(level, "%s", line, extra=about)
    else:
        told = {name: record.get(name) for name in _TOLD}
        model_log.log(record["level"], "%s", record["message"], extra={**told, **about})
