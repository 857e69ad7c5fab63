"""`torchserve-py serve` as a user runs it: in the foreground, in a folder, with what it prints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil
import requests
from tests.e2e.running_server import DEADLINE, ROOT, eventually
from tests.e2e.terminal import Terminal

COMMAND = [sys.executable, "-m", "torchserve_py.cli"]


def environment(temp: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command that finds this checkout."""
    path = os.pathsep.join([str(ROOT / "frontend"), str(ROOT / "backend")])
    return {**os.environ, "TMPDIR": str(temp), "PYTHONPATH": path, **(more or {})}


class ServeCommand:
    """The command with some arguments, on a free port.

    Args:
        folder: Where the user is.
        arguments: What stands behind ``serve``.
        variables: Of its environment, besides those of this process.
        terminal: Whether it prints to a terminal.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        port: int = 0,
        variables: Mapping[str, str] | None = None,
        terminal: bool = False,
    ) -> None:
        self.folder = folder
        self.temp = Path(tempfile.mkdtemp(prefix="tse2e-"))
        self.output = self.temp / "output"
        self.base = ""
        self.output.touch()
        end = Terminal(self.output).end if terminal else os.open(self.output, os.O_WRONLY)
        try:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *arguments, "--port", str(port)],
                cwd=folder,
                env=environment(self.temp, variables),
                stdout=end,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(end)  # the command has its own

    def __enter__(self) -> ServeCommand:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            processes = psutil.Process(self.process.pid).children(recursive=True)
            self.process.terminate()
            self.process.wait(20)
        except psutil.NoSuchProcess:
            processes = []
        except subprocess.TimeoutExpired:
            self.process.kill()
        for each in processes:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(DEADLINE)
        shutil.rmtree(self.temp, ignore_errors=True)

    def printed(self) -> str:
        """Return what the command has printed."""
        return self.output.read_text(errors="replace")

    def wait_for(self, text: str, times: int = 1) -> str:
        """Wait until the command has printed a text so many times; return all that it has printed."""

        def shows() -> bool:
            assert self.process.poll() is None, f"the command ended:\n{self.printed()}"
            return self.printed().count(text) >= times

        try:
            eventually(shows, f"it prints {text}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.printed()}") from None
        return self.printed()

    def wait_until_serving(self) -> ServeCommand:
        """Wait until the command says where it serves."""
        found = re.search(r"Serving at (http://\S+?)[,.]? ", self.wait_for("Ctrl-C ends it."))
        assert found is not None
        self.base = found[1]
        return self

    def curls(self) -> list[str]:
        """Return the commands that it proposes."""
        return [line.strip() for line in self.printed().splitlines() if line.startswith("  curl ")]

    def ended(self, number: signal.Signals = signal.SIGINT) -> int:
        """End the command, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def predict(self, model: str, body: str, **headers: str) -> requests.Response:
        """Send a text to a model; headers are those of sequences, without ``ts_request_``."""
        own = {f"ts_request_{name}": value for name, value in headers.items()}
        url = f"{self.base}/predictions/{model}"
        return requests.post(url, body, headers={"content-type": "text/plain", **own}, timeout=DEADLINE)


def run_curl(command: str) -> str:
    """Run a proposed curl in a shell, which must succeed, and return what it prints."""
    done = subprocess.run(
        ["bash", "-c", f"{command} --silent --show-error --fail-with-body --max-time 60"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
