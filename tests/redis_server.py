"""A real Redis server for tests: on a free port, its data in its own directory, killed and started again at will."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.ports import free_ports

DEADLINE = 60.0


class RedisServer:
    """Debian's ``redis-server``; what it has acknowledged survives its end.

    Args:
        directory: Where it keeps its data.
        more: Further options of its configuration.
    """

    def __init__(self, directory: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.directory = directory
        self.more = more
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory, "appendonly": "yes", "save": ""}
        options |= self.more
        arguments = [text for name, value in options.items() for text in (f"--{name}", *str(value).split(" "))]
        self._launch(*arguments)

    def start_sentinel(self, config: Path) -> None:
        """Start a Sentinel with this configuration file instead, and wait until it answers."""
        self._launch(str(config), "--sentinel")

    def _launch(self, *arguments: str) -> None:
        self._process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        end = time.monotonic() + DEADLINE
        while not self._answers():
            assert self._process.poll() is None, "redis-server has ended"
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the running server."""
        assert self._process is not None
        self._process.send_signal(number)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a word of warning."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(DEADLINE)
