"""The launcher with which a person starts the workers: the log says how."""

from __future__ import annotations

import asyncio
import logging
import shlex
from pathlib import Path

from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.worker_launcher import Launcher
from ts.protocol.messages import FOLDERS_VARIABLE, TOKEN_VARIABLE

logger = logging.getLogger(__name__)


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


def command_line(launch: Launch, socket: Path, token: str) -> str:
    """Return the line of shell that starts a worker as the server would."""
    environment = launch.worker_environment(token)
    names = sorted({*launch.environment, "PYTHONPATH", FOLDERS_VARIABLE, TOKEN_VARIABLE})
    hidden = [word for name in sorted(launch.hidden_variables) for word in ("-u", name)]
    settings = [f"{name}={environment[name]}" for name in names]
    words = ["env", *hidden, *settings, *launch.command(socket)]
    return f"cd {shlex.quote(str(launch.working_dir))} && {shlex.join(words)}"
