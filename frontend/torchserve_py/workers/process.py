"""One operating system process of a worker: launch it, log what it prints, tell why it ended.

With the setting ``debug`` a person launches it, perhaps in a debugger: the server says how, and waits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from torchserve_py.transport.turns import running_turns
from torchserve_py.workers.batch_tokens import BatchTokens
from torchserve_py.workers.confinement import Confinement
from torchserve_py.workers.launchers import CpuLauncher, Torchrun
from ts.protocol.log_records import record_of
from ts.protocol.messages import CLAIMS_VARIABLE, TOKEN_VARIABLE
from ts.protocol.server_identity import started

if TYPE_CHECKING:
    from torchserve_py.workers.forking import Forking
    from torchserve_py.workers.ray_workers import RemoteLaunch

logger = logging.getLogger(__name__)
model_log = logging.getLogger("MODEL_LOG")

#: Seconds; as long as a person may want, in numbers that timers can hold.
NO_LIMIT = 10 * 365 * 24 * 3600.0
_READ_SIZE = 64 * 1024
#: What records of workers say besides level and message.
_TOLD = ("request_id", "sequence_id", "request_ids", "sequence_ids", "exception")


@dataclass(frozen=True)
class Launch:
    """How a worker process of a model version is started."""

    working_dir: Path
    runtime: str = "python"  # "python": this interpreter; "python3": the one on PATH
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of the server's own
    hidden_variables: frozenset[str] = frozenset()  # names of the server's variables that the worker must not see
    gpu_index: int | None = None  # nvidia-smi's number of its GPU, the first of several; None on a CPU
    venv_python: Path | None = None  # the interpreter of the model's own virtual environment, instead of the runtime's
    packages_dir: Path | None = None  # packages that were installed for the model, without a virtual environment
    torchrun: Torchrun | None = None  # starts several processes for the worker
    cpu_launcher: CpuLauncher | None = None  # binds the worker to its share of the cores
    ahead: bool = False  # the worker may be sent a batch while it runs one
    remote: RemoteLaunch | None = None  # where Ray starts it, instead of this machine
    by_hand: bool = False  # a person starts it, not the server
    confinement: Confinement = field(default_factory=Confinement)  # as which user it runs, and with how much memory
    imports: Sequence[str] = ()  # modules that the model needs and that others need, too
    forking: Forking | None = None  # forks the worker where it can; None: the worker has an interpreter of its own

    def command(self, socket: Path) -> list[str]:
        """Return the command line.

        Raises FileNotFoundError: the interpreter that the runtime asks for, or a launcher, is missing.
        """
        python = str(self.venv_python or interpreter(self.runtime))
        # -P keeps the working directory, which is the model's, from shadowing modules of the worker itself.
        command = [python, "-P", "-m", "ts.worker", "--socket", str(socket)]
        if self.torchrun is not None:
            command.append("--rank-from-environment")
        if self.cpu_launcher is not None:
            command = self.cpu_launcher.wrap(python, command)
        if self.torchrun is not None:
            command = self.torchrun.wrap(python, command)
        return self.confinement.wrap(command)

    def worker_environment(self, token: str) -> dict[str, str]:
        """Return the environment of the process."""
        paths = [self.working_dir, self.packages_dir]
        if self.venv_python is None:  # a virtual environment has it behind its own packages
            paths.append(worker_package_root())
        environment = server_environment(self.hidden_variables, *paths)
        return {**environment, **self.environment, TOKEN_VARIABLE: token}


def server_environment(hidden: frozenset[str], *paths: Path | None) -> dict[str, str]:
    """Return the server's variables without those that are hidden, with further folders to look for modules in."""
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    inherited = environment.get("PYTHONPATH")
    searched = [inherited] if inherited else []
    environment["PYTHONPATH"] = os.pathsep.join([*searched, *(str(each) for each in paths if each)])
    return environment


def interpreter(runtime: str) -> str:
    """Return the Python interpreter that a runtime means. Raises FileNotFoundError: it is not on PATH."""
    if runtime != "python3":
        return sys.executable
    found = shutil.which("python3")
    if found is None:
        raise FileNotFoundError("the model asks for runtime 'python3', but no python3 is on PATH")
    return found


def worker_package_root() -> Path:
    """Return the directory that ``ts`` is imported from, for workers whose interpreter does not have it installed."""
    spec = importlib.util.find_spec("ts")
    assert spec is not None, "the worker's package is part of the distribution"
    assert spec.origin is not None, "the worker's package is a regular package"
    return Path(spec.origin).parent.parent


class Child(Protocol):
    """What is needed of a process: `asyncio.subprocess.Process`, or what stands for a forked worker."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...


class WorkerProcess:
    """A running process whose standard output and error go to the model log, line by line.

    It leads a process group of its own, and the processes that it has started in there end with it. Launchers put the
    processes that they start in groups of their own: each of these ends with it, too, once its leader was adopted.
    """

    def __init__(self, process: Child, label: str, *, forked: bool = False) -> None:
        self._process = process
        #: The leaders of the process groups that end with it, and when each was started (None: it is our own child).
        self._leaders: dict[int, str | None] = {process.pid: started(process.pid) if forked else None}
        assert process.stdout is not None
        assert process.stderr is not None
        self._pumps = asyncio.gather(
            log_lines(process.stdout, f"{label}-stdout", logging.INFO),
            log_lines(process.stderr, f"{label}-stderr", logging.WARNING),
        )

    @classmethod
    async def launch(
        cls, launch: Launch, socket: Path, token: str, label: str, tokens: BatchTokens | None = None
    ) -> WorkerProcess:
        """Start the process, which claims what it is sent ahead with ``tokens``.

        Raises OSError: it could not be started.
        """
        claims = () if tokens is None else tokens.worker_ends
        if launch.forking is not None:
            forked = await launch.forking.fork(launch, socket, token, label, claims)
            if forked is not None:
                return cls(forked, label, forked=True)
        environment = launch.worker_environment(token)
        if claims:
            environment[CLAIMS_VARIABLE] = ",".join(map(str, claims))
        process = await asyncio.create_subprocess_exec(
            *launch.command(socket),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=launch.working_dir,
            env=environment,
            start_new_session=True,
            pass_fds=claims,
        )
        return cls(process, label)

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


class HandStarted:
    """Stands for the process that a person starts; it lives as long as its connection.

    Attributes:
        pid: -1; which process it is turns out when it connects.
    """

    pid = -1

    def __init__(self) -> None:
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    def launch(cls, launch: Launch, socket: Path, token: str, label: str) -> HandStarted:
        """Tell how to start the worker.

        Raises OSError: the interpreter or a launcher of its command line is missing.
        """
        logger.warning("Start worker %s by hand:\n\n%s\n", label, command_line(launch, socket, token))
        return cls()

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


def command_line(launch: Launch, socket: Path, token: str) -> str:
    """Return the line of shell that starts a worker as the server would."""
    environment = launch.worker_environment(token)
    names = sorted({*launch.environment, "PYTHONPATH", TOKEN_VARIABLE})
    hidden = [word for name in sorted(launch.hidden_variables) for word in ("-u", name)]
    settings = [f"{name}={environment[name]}" for name in names]
    words = ["env", *hidden, *settings, *launch.command(socket)]
    return f"cd {shlex.quote(str(launch.working_dir))} && {shlex.join(words)}"


def describe_exit(code: int) -> str:
    """Say in words what an exit status means (negative: ended by that signal)."""
    if code == 0:
        return "exited with code 0"
    if code > 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"was killed by {name}, probably because the machine ran out of memory"
    return f"was killed by {name}"


class Readable(Protocol):
    """What a process prints."""

    async def read(self, n: int = -1, /) -> bytes:
        """Wait for further bytes; b'' at the end."""


async def log_lines(stream: Readable, label: str, level: int) -> None:
    """Log every line, some in each turn of the event loop; one longer than what is read at once is logged in pieces."""
    turns, rest = running_turns(), b""
    while data := await stream.read(_READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) >= _READ_SIZE:
            lines.append(rest)
            rest = b""
        end = turns.end_of_slice()
        for line in lines:
            _log_line(line.decode("utf-8", "replace").rstrip("\r"), label, level)
            if monotonic() > end:
                await turns.next()
                end = turns.end_of_slice()
    if rest:
        _log_line(rest.decode("utf-8", "replace"), label, level)


def _log_line(line: str, label: str, level: int) -> None:
    """Log a printed line; a line that is a log record keeps its level and its ids."""
    record = record_of(line)
    if record is None:
        model_log.log(level, "%s", line, extra={"worker": label})
    else:
        about = {name: record.get(name) for name in _TOLD}
        model_log.log(record["level"], "%s", record["message"], extra={**about, "worker": label})
