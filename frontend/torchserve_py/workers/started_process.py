"""The process of a worker, whoever starts it: the server, a person, or Ray on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torchserve_py.workers.batch_tokens import BatchTokens
from torchserve_py.workers.launch import Launch
from torchserve_py.workers.process import HandStarted, WorkerProcess
from torchserve_py.workers.startup import WorkerFailed


class StartedProcess(Protocol):
    """A process that has been started.

    Attributes:
        pid: Its id on this machine, -1 if it has none there or the id is not known.
    """

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""

    def adopt(self, pid: int) -> None:
        """Let the process group that ``pid`` leads end with this process; ``pid`` is what the kernel has told."""

    async def wait(self) -> str:
        """Wait for the end of the process and of its output; return why it ended."""

    def kill(self) -> None:
        """End the process, unless it is gone."""


async def start_process(
    launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
) -> StartedProcess:
    """Start a worker's process, which claims what it is sent ahead with ``tokens``.

    Raises WorkerFailed: it could not be started, or no machine has room.
    """
    if launch.remote is not None:
        from torchserve_py.workers.ray_process import RemoteProcess  # most servers do without

        return await RemoteProcess.launch(launch.remote, worker_id, token, label)
    try:
        if launch.by_hand:
            return HandStarted.launch(launch, socket, token, label)
        return await WorkerProcess.launch(launch, socket, token, label, tokens)
    except OSError as error:
        raise WorkerFailed(500, f"worker {label} could not be started: {error}") from error
