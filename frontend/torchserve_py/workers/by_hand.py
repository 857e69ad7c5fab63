"""A worker that a person starts, in a debugger perhaps (setting ``debug``): the server says how, and waits."""

from __future__ import annotations

import asyncio
import logging
import shlex
from pathlib import Path

from torchserve_py.workers.process import Launch
from ts.protocol.messages import TOKEN_VARIABLE

logger = logging.getLogger(__name__)

#: Seconds; as long as a person may want, in numbers that timers can hold.
NO_LIMIT = 10 * 365 * 24 * 3600.0


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

        Raises:
            OSError: What its command line needs is missing.
        """
        logger.warning("Start worker %s by hand:\n\n%s\n", label, command_line(launch, socket, token))
        return cls()

    def adopt(self, pid: int) -> None:
        """Leave the process alone: who started it ends it."""

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
