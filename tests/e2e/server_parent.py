"""A process that has imported the server, and whose children become servers, each in a tenth of the processor time.

`RunningServer` uses it for servers that are started as they are by default. Those that get variables of their own, or
are started by another program, are started afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from torchserve_py.server_process import SERVER, command_of, environment

_MODULE: Final = "tests.e2e.server_parent_process"
_ROOT: Final = Path(__file__).resolve().parents[2]


class ForkedServer:
    """A server that is a child of the parent of servers, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, told: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended. Raises subprocess.TimeoutExpired."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired([SERVER], timeout or 0.0)
        return status

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.recv(100) or -signal.SIGKILL)  # nothing: the parent was killed
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its parent is about to tell that it has ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ServerParent:
    """The process, from the point of view of tests."""

    def __init__(self) -> None:
        self._orders, of_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(str(_ROOT / each) for each in ("frontend", "backend", "."))
        with of_parent:
            self._process = subprocess.Popen(
                [*command_of(_MODULE, (str(of_parent.fileno()),)), SERVER],
                env={**environment(), "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                pass_fds=[of_parent.fileno()],
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._orders.close()
        self._process.wait()

    def start(self, argv: Sequence[str], folder: Path, variables: Mapping[str, str], output: int) -> ForkedServer:
        """Start a server with these arguments and variables in a folder, which prints to a file."""
        told, of_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with of_parent:
            order = json.dumps([list(argv), str(folder), dict(variables)]).encode()
            socket.send_fds(self._orders, [order], [output, of_parent.fileno()])
        return ForkedServer(int(told.recv(100)), told)


_parents: list[ServerParent] = []


def server_parent() -> ServerParent:
    """Return the parent of this process's servers, which starts with the first one."""
    if not _parents:
        _parents.append(ServerParent())
    return _parents[0]
