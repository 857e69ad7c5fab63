"""Starts the server and stops it, as the flags of the command say.

The server is ``python -m torchserve_py.server`` with the same arguments: a process of its own or, in the foreground,
what this process becomes. A pid file names it. The configuration is checked here, before the server starts.
Messages and exit codes are TorchServe's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchserve_py.base.pid_file import PidFile, default_path
from torchserve_py.base.settings.flags import Flags, parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.table import Effective
from torchserve_py.base.terminal import tell
from torchserve_py.server_process import SERVER, become, command_of, environment, hold_end_signals

if TYPE_CHECKING:
    import psutil

_STOP_MARGIN = 60
_TELL_OF_WAITING_AFTER = 2.0


@dataclass(frozen=True)
class ServerLauncher:
    """Starts and stops the server that the pid file at ``pid_path`` names; ``module`` is what runs as the server."""

    argv: Sequence[str]  # without the program's name; the server gets the same
    module: str = SERVER
    pid_path: Path = field(default_factory=default_path)

    def run(self) -> int:
        """Do what the command line asks for and return the exit code."""
        flags = parse_flags(self.argv)
        return self._stop() if flags.stop else self._start(flags)

    @property
    def _pid_file(self) -> PidFile:
        return PidFile(self.pid_path, self.module)

    def _running(self) -> psutil.Process | None:
        if self._pid_file.remove_orphan():
            tell("Removing orphan pid file.")
        return self._pid_file.server()

    # Start

    def _start(self, flags: Flags) -> int:
        if flags.foreground:
            hold_end_signals()
        running = self._running()
        if running is not None:
            return self._tell_of(running)
        resolution = Resolution(flags, os.environ, Path.cwd())
        if resolution.errors:
            tell("\n".join(resolution.errors))
            return 1
        sys.stdout.flush()
        try:
            with self._pid_file.lock():
                running = self._pid_file.server()  # another start may have come between
                if running is not None:
                    return self._tell_of(running)
                if flags.foreground:  # who watches, signals or kills this process has the server
                    self._pid_file.write(os.getpid())
                    become(self.module, self.argv)  # releases the lock; its file is removed with the pid file
                if problems := _problems_of_opening(resolution):  # with the lock: two starts that try get in their way
                    tell("\n".join(problems))
                    return 1
                self._launch()
        except OSError as error:
            tell(f"The pid file {self.pid_path} cannot be written: {error.strerror}. The server is not started.")
            return 1
        return 0

    def _launch(self) -> None:
        # A session of its own: Ctrl-C in the shell must not reach the server when its launcher is gone.
        server = subprocess.Popen(
            command_of(self.module, self.argv),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        )
        try:
            self._pid_file.write(server.pid)
        except OSError:
            server.kill()
            server.wait()
            raise

    # Stop

    def _stop(self) -> int:
        server = self._running()
        if server is None:
            tell("TorchServe is not currently running.")
            return 0
        import psutil  # loaded already, to look at the process

        from torchserve_py.endpoints.token_authorization import KEY_FILE  # which only this command needs

        try:
            limit = self._drain_timeout(server) + _STOP_MARGIN
            key_file = Path(server.cwd()) / KEY_FILE  # one in this folder may be another server's
            tell(f"Stopping {self._place_of(server)}.", to_stderr=True)
            server.terminate()
        except psutil.NoSuchProcess:
            self._pid_file.remove(server.pid)
            tell("TorchServe already stopped.")
            return 0
        except psutil.AccessDenied:
            tell(f"TorchServe is process {server.pid} of user {server.username()}; only that user can stop it.")
            return 1
        if not _wait_until_gone(server, limit):
            tell("Stopping TorchServe took too long.")
            tell(f"Process {server.pid} still runs after {limit} s; kill -9 {server.pid} ends it at once.")
            return 1
        key_file.unlink(missing_ok=True)
        self._pid_file.remove(server.pid)
        tell("TorchServe has stopped.")
        return 0

    def _tell_of(self, running: psutil.Process) -> int:
        tell("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
        since = datetime.fromtimestamp(running.create_time())
        tell(
            f"It is {self._place_of(running)}, running since {since:%Y-%m-%d %H:%M:%S}. One server runs per temporary"
            f" directory, here {self._pid_file.path.parent}: a second one needs another, in the variable TMPDIR."
        )
        return 1

    def _place_of(self, server: psutil.Process) -> str:
        """Return which server it is, for people: its process, address and folder, of another user the process alone."""
        import psutil

        try:
            address, folder = self._effective(server).get("inference_address"), server.cwd()
        except psutil.Error:
            return f"process {server.pid}"
        return f"process {server.pid}{f' at {address.value}' if address else ''}, started in {folder}"

    def _effective(self, server: psutil.Process) -> Mapping[str, Effective]:
        """Return the settings of the running server, as it was started."""
        command = server.cmdline()
        own_flags = parse_flags(command[command.index(self.module) + 1 :])
        environ: Mapping[str, str] = server.environ()
        return Resolution(own_flags, environ, Path(server.cwd())).effective

    def _drain_timeout(self, server: psutil.Process) -> int:
        """Return how long the running server may take to drain, in seconds."""
        effective = self._effective(server)
        return sum(int(effective[name].value) for name in ("drain_delay", "drain_timeout") if name in effective)


def _problems_of_opening(resolution: Resolution) -> list[str]:
    """Return why a server could not open its addresses; nobody would be there to read it from the server's own log."""
    import asyncio  # which, as the next one, only a start in the background needs

    from torchserve_py.openings import problems_of_opening

    return asyncio.run(problems_of_opening(resolution.settings()))


def _wait_until_gone(server: psutil.Process, limit: float) -> bool:
    """Wait until the process has ended, at most ``limit`` seconds; tell the user when that is not at once."""
    import psutil

    started = time.monotonic()
    told = False
    while (waited := time.monotonic() - started) < limit:
        with contextlib.suppress(psutil.TimeoutExpired):
            server.wait(min(0.1, limit))
        try:
            if not server.is_running() or server.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if not told and waited > _TELL_OF_WAITING_AFTER:
            awaited = "finish accepted requests and open sequences"
            tell(f"Waiting for process {server.pid} to {awaited}, at most {limit:g} s.")
            told = True
    return False
