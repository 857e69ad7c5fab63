"""Launchers of this machine: the server starts processes; or, to debug them, a person does."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from torchserve_py.workers.batch_tokens import BatchTokens
from torchserve_py.workers.launch_command import Launch, command_line
from torchserve_py.workers.process import WorkerProcess, start_child
from torchserve_py.workers.worker_launcher import Launcher
from ts.protocol.messages import CLAIMS_VARIABLE

logger = logging.getLogger(__name__)


class LocalLauncher(Launcher):
    """Starts processes."""

    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> WorkerProcess:
        """Start a process, as `Launcher.start` says."""
        claims = () if tokens is None else tokens.worker_ends
        environment = launch.worker_environment(token)
        if claims:
            environment[CLAIMS_VARIABLE] = ",".join(map(str, claims))
        process = await start_child(launch.command(socket), launch.working_dir, environment, claims)
        return WorkerProcess(process, label, worker_id)


class DebugLauncher(Launcher):
    """Says how a person starts a process, perhaps in a debugger."""

    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> HandStarted:
        """Log the command line; what it starts is known once it connects."""
        logger.warning("Start worker %s by hand:\n\n%s\n", label, command_line(launch, socket, token))
        return HandStarted()


class HandStarted:
    """Stands for the process that a person starts; it lives as long as its connection."""

    pid = -1  # which process it is turns out when it connects
    is_lost = False

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
