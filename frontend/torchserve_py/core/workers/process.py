"""A process of a worker on this machine: start it, log what it prints, tell why it ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

from torchserve_py.base.logs import MODEL_LOGGER
from torchserve_py.core.workers.startup import BY_WHOM_KILLED
from torchserve_py.net.turns import running_turns
from ts.protocol.log_records import record_of
from ts.protocol.process_start import started

logger = logging.getLogger(__name__)
model_log = logging.getLogger(MODEL_LOGGER)

#: Seconds; as long as a person may want, in numbers that timers can hold.
NO_LIMIT = 10 * 365 * 24 * 3600.0
_READ_SIZE = 64 * 1024
_LEVELS: Final = {"stdout": logging.INFO, "stderr": logging.WARNING}
#: What records of workers say besides level and message.
_TOLD = ("request_id", "sequence_id", "request_ids", "sequence_ids", "model_logger", "exception")


class RunningProcess(Protocol):
    """What is known of a process as `asyncio.subprocess.Process` knows it."""

    pid: int

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """What it prints."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        """What it prints as errors."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit status, negative if a signal has ended it; None while it runs."""
        ...

    async def wait(self) -> int:
        """Wait for its end; return the exit status."""
        ...


class WorkerProcess:
    """A running process whose standard output and error go to the model log, line by line.

    It leads a process group of its own, and the processes that it has started in there end with it. Launchers put the
    processes that they start in groups of their own: each of these ends with it, too, once its leader was adopted.
    """

    is_lost = False  # as a process on another machine may be

    def __init__(
        self,
        process: RunningProcess,
        label: str,
        worker_id: str = "",
        *,
        is_child: bool = True,
    ) -> None:
        self._process = process
        #: The leaders of the process groups that end with it, and when each was started (None: it is our own child).
        self._leaders: dict[int, str | None] = {process.pid: None if is_child else started(process.pid)}
        assert process.stdout is not None
        assert process.stderr is not None
        self._pumps = asyncio.gather(
            log_lines(process.stdout, "stdout", label, worker_id),
            log_lines(process.stderr, "stderr", label, worker_id),
        )

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


def describe_exit(code: int) -> str:
    """Say in words what an exit status means (negative: ended by that signal)."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"was killed by {name}, {BY_WHOM_KILLED}"
    return f"was killed by {name}"


class OutputStream(Protocol):
    """What a process prints."""

    async def read(self, n: int, /) -> bytes:
        """Wait for output; return at most ``n`` bytes, b"" at its end."""
        ...


async def log_lines(stream: OutputStream, source: str, label: str, worker_id: str) -> None:
    """Log every line, some in each turn of the event loop; one longer than what is read at once is logged in pieces.

    ``source`` is stdout or stderr; ``worker_id`` is empty for a process that is no worker.
    """
    about = {"worker": f"{label}-{source}", "of_worker": worker_id, "source": source}
    if worker_id:  # the label is W-<id>-<model>_<version>
        about["model"], _, about["model_version"] = label.split("-", 2)[-1].rpartition("_")
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
    """Log a printed line; a line that is a log record keeps its level, its logger, its traceback and its ids."""
    told = record_of(line)
    if told is None:
        model_log.log(level, "%s", line, extra=about)
    elif model_log.isEnabledFor(told["level"]):
        extra = {**{name: told.get(name) for name in _TOLD}, **about}
        record = model_log.makeRecord(model_log.name, told["level"], "", 0, "%s", (told["message"],), None, extra=extra)
        exception = told.get("exception")
        record.exc_text = exception if isinstance(exception, str) else None  # for formatters of the operator's
        model_log.handle(record)
