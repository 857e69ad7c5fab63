"""Servers to measure: each is started with one model on free loopback ports in a folder of its own, and stopped again.

TorchServe and this server are started by the same arguments; the bare aiohttp application takes just a port.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.archives import ROOT, BenchmarkModel

START_LIMIT = 120.0  # seconds until the first prediction
STOP_LIMIT = 30.0  # seconds until the last process is gone
PID_FILE = ".model_server.pid"


class ServerFailed(RuntimeError):
    """A server did not start, did not answer its first request rightly, or is gone."""


@dataclass(frozen=True)
class Launcher:
    """How one kind of server is started: `command` takes TorchServe's flags; a `bare` one (bare_aiohttp.py), a port."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    bare: bool = False


def this_server(python: str) -> Launcher:
    """This checkout's server, run by the interpreter `python`, which needs its dependencies."""
    sources = os.pathsep.join(str(ROOT / name) for name in ("frontend", "backend"))
    return Launcher("torchserve-py", (python, "-m", "torchserve_py.cli"), {"PYTHONPATH": sources})


def torchserve(venv: Path) -> Launcher:
    """The real TorchServe that scripts/install-torchserve has put into `venv`. Raises ServerFailed if it is not."""
    program = venv / "bin" / "torchserve"
    if not program.is_file():
        raise ServerFailed(f"There is no TorchServe in {venv}; scripts/install-torchserve installs it.")
    # TorchServe starts its workers with the `python` that it finds first.
    path = os.pathsep.join([str(venv / "bin"), os.environ.get("PATH", "")])
    return Launcher("TorchServe", (str(program),), {"PATH": path})


def bare_aiohttp(python: str) -> Launcher:
    """The yardstick."""
    return Launcher("bare aiohttp", (python, str(ROOT / "benchmarks" / "bare_aiohttp.py")), bare=True)


class Server:
    """One running server with one model. A context manager: entering starts it, leaving stops every process it has."""

    def __init__(self, launcher: Launcher, model: BenchmarkModel) -> None:
        self.launcher = launcher
        self.model = model
        self._ports = _free_ports(5)
        self._environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("TS_")
        }

    @property
    def url(self) -> str:
        """Where its predictions are."""
        return f"http://127.0.0.1:{self._ports[0]}/predictions/{self.model.name}"

    @property
    def grpc_target(self) -> str:
        """Where its gRPC inference service is, as ``host:port``."""
        return f"127.0.0.1:{self._ports[3]}"

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

    def suspend(self) -> None:
        """Stop it from running at all while another is measured."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        """Let it run again, workers first, so that they are there when the server looks for them."""
        for process in reversed(self._processes()):
            process.resume()

    def _launch(self, folder: Path) -> None:
        command = list(self.launcher.command)
        if self.launcher.bare:
            command.append(str(self._ports[0]))
        else:
            store = folder / "model_store"
            store.mkdir()
            archive = self.model.pack(store)
            config = folder / "config.properties"
            config.write_text(self._properties(store, archive))
            command += ["--start", "--ncs", "--disable-token-auth", "--ts-config", str(config)]
        with self._log.open("wb") as log:
            launched = subprocess.Popen(
                command, cwd=folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if self.launcher.bare:
            self._pid_file.write_text(str(launched.pid))
        elif launched.wait(START_LIMIT) != 0:
            raise ServerFailed(f"{self.launcher.name} did not start:\n{self._output()}")
        self._launched = launched

    def _properties(self, store: Path, archive: Path) -> str:
        inference, management, metrics, grpc_inference, grpc_management = self._ports
        return (
            f"inference_address=http://127.0.0.1:{inference}\n"
            f"management_address=http://127.0.0.1:{management}\n"
            f"metrics_address=http://127.0.0.1:{metrics}\n"
            f"grpc_inference_port={grpc_inference}\n"
            f"grpc_management_port={grpc_management}\n"
            f"model_store={store}\n"
            f"load_models={archive.name}\n"
            "disable_system_metrics=true\n"
            "drain_timeout=1\n"  # this server's own: do not wait long for sequences that a load has left open
        )

    def _await_first_prediction(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        while (answer := self._predict()) is None:
            if time.monotonic() > deadline or not self._processes():
                raise ServerFailed(f"{self.launcher.name} did not answer a prediction:\n{self._output()}")
            time.sleep(0.005)
        if answer != self.model.answer:
            raise ServerFailed(f"{self.launcher.name} answered {answer[:80]!r}, not {self.model.answer[:80]!r}.")

    def _predict(self) -> bytes | None:
        """The answer to the model's request, or None if there is none yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[0], timeout=START_LIMIT)
        try:
            connection.request("POST", f"/predictions/{self.model.name}", self.model.body, self.model.headers)
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


def free_port() -> int:
    """A port that nobody uses."""
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below those that the system hands to a load's connections."""
    free: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                free.append(port)
        if len(free) == count:
            return free
    raise ServerFailed("There are no free ports between 20,000 and 32,000.")
