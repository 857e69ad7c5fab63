"""Servers to measure: each is started with one model on free loopback ports in a folder of its own, and stopped."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.benchmark_models import BenchmarkModel
from benchmarks.launchers import Launcher, Ports

START_LIMIT = 120.0  # seconds until the first prediction
STOP_LIMIT = 30.0  # seconds until the last process is gone
PID_FILE = ".model_server.pid"
KEY_FILE = "key_file.json"  # where TorchServe and this server write the tokens that clients need


class ServerFailed(RuntimeError):
    """A server did not start, did not answer its first request rightly, or is gone."""


class Server:
    """One running server with one model. A context manager: entering starts it, leaving stops every process it has."""

    def __init__(self, launcher: Launcher, model: BenchmarkModel) -> None:
        self.launcher = launcher
        self.model = model
        self._ports = Ports(*free_ports(len(Ports._fields)))
        self._environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("TS_")
        }

    @property
    def url(self) -> str:
        """Where it answers HTTP requests, without a path."""
        return f"http://127.0.0.1:{self._ports.http}"

    @property
    def management_url(self) -> str:
        """Where it is managed, without a path."""
        return f"http://127.0.0.1:{self._ports.management}"

    @property
    def folder(self) -> Path:
        """Where it runs, with its ``model_store``."""
        return Path(self._temporary.name)

    @property
    def metrics_url(self) -> str:
        """Where it shows its metrics."""
        return f"http://127.0.0.1:{self._ports.metrics}/metrics"

    @property
    def grpc_target(self) -> str:
        """Where its gRPC inference service is, as ``host:port``."""
        return f"127.0.0.1:{self._ports.grpc}"

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the token for inference; none of a server without tokens."""
        try:
            keys = json.loads((Path(self._temporary.name) / KEY_FILE).read_text())
        except (FileNotFoundError, ValueError):  # a server that starts is still writing the file
            return {}
        return {"Authorization": f"Bearer {keys['inference']['key']}", "Protocol": "gRPC"}

    def __enter__(self) -> Self:
        self._temporary = tempfile.TemporaryDirectory(prefix="benchmark-")
        folder = Path(self._temporary.name)
        self._log = folder / "output.log"
        self._pid_file = folder / PID_FILE
        self._environment |= {
            "TMPDIR": str(folder),
            "TEMP": str(folder),
            "LOG_LOCATION": str(folder / "logs"),
            "METRICS_LOCATION": str(folder / "logs"),
        } | self.launcher.environment
        started = time.perf_counter()
        try:
            self._launch(folder)
            self._await_first_prediction()
        except BaseException:
            self._stop()
            raise
        #: seconds from the start of the command to the first right answer
        self.start_seconds = time.perf_counter() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def memory(self) -> int:
        """Resident memory of all its processes together, in bytes."""
        return sum(process.memory_info().rss for process in self._processes())

    def processor_seconds(self) -> float:
        """The processor time that all its processes together have taken so far."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(each.user + each.system for each in times)

    def frontend(self) -> psutil.Process:
        """The process that clients talk to."""
        return self._processes()[0]

    def below(self) -> list[psutil.Process]:
        """The processes that it has started, parents first."""
        return self._processes()[1:]

    def suspend(self) -> None:
        """Stop it from running at all while another is measured."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        """Let it run again, workers first, so that they are there when the server looks for them."""
        for process in reversed(self._processes()):
            process.resume()

    def _launch(self, folder: Path) -> None:
        command = self.launcher.command(folder, self._ports, self.model)
        with self._log.open("wb") as log:
            launched = subprocess.Popen(
                command, cwd=folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if not self.launcher.daemonizes:
            self._pid_file.write_text(str(launched.pid))
        elif launched.wait(START_LIMIT) != 0:
            raise ServerFailed(f"{self.launcher.name} did not start:\n{self._output()}")
        self._launched = launched

    def _await_first_prediction(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        while (answer := self.predict()) is None:
            has_ended = not self.launcher.daemonizes and self._launched.poll() is not None
            if time.monotonic() > deadline or has_ended or not self._processes():
                raise ServerFailed(f"{self.launcher.name} did not answer a prediction:\n{self._output()}")
            time.sleep(0.005)
        if self.launcher.has_http and not self.model.probe.is_right(answer):
            raise ServerFailed(f"{self.launcher.name} answered {answer[:200]!r} to the model's first request.")

    def predict(self) -> bytes | None:
        """The answer to the model's request, or None if there is none yet; of a server without HTTP, nothing."""
        port = self._ports.http if self.launcher.has_http else self._ports.grpc
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_LIMIT)
        probe = self.model.probe
        try:
            if not self.launcher.has_http:
                connection.connect()
                return b""
            connection.request("POST", probe.path, probe.body, probe.headers | self.authorization)
            response = connection.getresponse()
            body = response.read()
            return body if response.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _processes(self) -> list[psutil.Process]:
        """The server process and everything that it started, parents first; empty when it is gone."""
        try:
            process = psutil.Process(int(self._pid_file.read_text()))
            return [process, *process.children(recursive=True)]
        except (OSError, ValueError, psutil.NoSuchProcess):
            return []

    def _output(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:]) if self._log.exists() else ""

    def _stop(self) -> None:
        processes = self._processes()
        for process in reversed(processes):
            process.resume()
        if processes:
            processes[0].terminate()
        _, alive = psutil.wait_procs(processes, timeout=STOP_LIMIT)
        for process in alive:
            print(f"{self.launcher.name} left process {process.pid} behind; killing it.", file=sys.stderr)
            process.kill()
        psutil.wait_procs(alive, timeout=STOP_LIMIT)
        self._temporary.cleanup()


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below those that the system hands to a load's connections."""
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                free.append(port)
        if len(free) == count:
            return free
    raise ServerFailed("There are no free ports between 20,000 and 32,000.")
