"""A real server for a test: its own ports, directories and pid file; ended, with all it started, after the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.server_parent import ForkedServer, server_parent
from tests.ports import free_ports

from torchserve_py.server_process import SERVER, command_of
from torchserve_py.server_process import environment as environment_of_servers

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = ROOT / "handlers"
DEADLINE = 300.0
#: What users type. Tests mostly start what that becomes in the foreground, which saves half a second.
COMMAND = (sys.executable, "-m", "torchserve_py.cli")

T = TypeVar("T")


def eventually(condition: Callable[[], T], what: str, deadline: float = DEADLINE) -> T:
    """Return the first true value of ``condition``; fail when there is none within ``deadline`` seconds."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < deadline, f"not within {deadline:g} s: {what}"
        time.sleep(min(0.1, max(0.01, waited / 10)))  # to look takes time of the processor, too


class RunningServer:
    """A server process in the foreground, see `COMMAND`.

    Args:
        models: Name to the folder (or archive in the model store) to load at start-up.
        properties: Further lines of config.properties.
        environment: Further environment variables.
    """

    def __init__(
        self,
        models: Mapping[str, Path | str] | None = None,
        properties: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = ("--disable-token-auth", "--enable-model-api"),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tse2e-"))
        self.model_store = self.directory / "store"
        self.temp = self.directory / "tmp"
        for each in (self.model_store, self.temp):
            each.mkdir()
        inference, management, metrics = free_ports(3)
        self.inference = f"http://127.0.0.1:{inference}"
        self.management = f"http://127.0.0.1:{management}"
        self.metrics = f"http://127.0.0.1:{metrics}"
        lines = {
            "inference_address": self.inference,
            "management_address": self.management,
            "metrics_address": self.metrics,
            "grpc_inference_port": 0,
            "grpc_management_port": 0,
            "default_workers_per_model": 1,
            "disable_system_metrics": "true",
            **(properties or {}),
        }
        self.config = self.directory / "config.properties"
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.environment = {
            **environment_of_servers(),
            "TMPDIR": str(self.temp),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "frontend"), str(ROOT / "backend")]),
            **(environment or {}),
        }
        self.output = self.directory / "output"
        specs = [f"{name}={location}" for name, location in (models or {}).items()]
        self.command = [
            *command_of(SERVER, ("--foreground", "--start", "--ncs", *flags)),
            *("--ts-config", str(self.config), "--model-store", str(self.model_store)),
            *(("--models", *specs) if specs else ()),
        ]
        #: The variables with which it may be forked: none of its own.
        self._plain_environment = None if environment else dict(self.environment)
        self.process: subprocess.Popen[bytes] | ForkedServer | None = None

    def started_by(self, *program: str) -> RunningServer:
        """Let a program start the server, such as `COMMAND`."""
        self.command[: self.command.index("--foreground")] = program
        return self

    def __enter__(self) -> RunningServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.kill_everything()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until the endpoints are open."""
        self.launch()
        eventually(self._is_open, "the server says that it has started")

    def launch(self) -> None:
        """Start, and wait for nothing."""
        with self.output.open("ab") as output:
            plain = command_of(SERVER, ())
            if self.command[: len(plain)] == plain and self.environment == self._plain_environment:
                argv = self.command[len(plain) :]
                self.process = server_parent().start(argv, self.directory, self.environment, output.fileno())
                return
            self.process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _is_open(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the server exited:\n{self.log()}"
        return "Model server started." in self.log()

    def wait_ready(self) -> None:
        """Wait until every start-up model has its workers."""

        def ready() -> bool:
            return requests.get(f"{self.inference}/ready", timeout=DEADLINE).status_code == 200

        try:
            eventually(ready, "the server is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()[-5000:]}") from None

    def story(self) -> str:
        """Return all that the server has printed but metrics."""
        return "\n".join(line for line in self.log().splitlines() if "_METRICS - " not in line)

    def log(self) -> str:
        """Return all that the server has printed."""
        return self.output.read_text(errors="replace")

    # Processes

    @property
    def launcher(self) -> psutil.Process:
        """The process that was started."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def server(self) -> psutil.Process:
        """The process with the frontend."""
        for each in [self.launcher, *self.launcher.children(recursive=True)]:
            if "torchserve_py.server" in each.cmdline():
                return each
        raise AssertionError("there is no frontend process")

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes that are alive."""
        return [each for each in self.server.children(recursive=True) if "ts.process.worker" in _command_line(each)]

    def terminate(self, number: signal.Signals = signal.SIGTERM, deadline: float = DEADLINE) -> int:
        """Send a signal to the launcher and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(deadline)

    def kill_everything(self) -> None:
        """End the server and every process below it."""
        if self.process is None:
            return
        try:
            tree = [self.launcher, *self.launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            tree = []
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for each in tree:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(DEADLINE)

    # Requests

    def predict(
        self, model: str, body: bytes | str = b"", *, sequence: str | None = None, **more: Any
    ) -> requests.Response:
        """Post ``body`` to a model, as part of ``sequence`` if one is given."""
        headers = {"content-type": "text/plain", **more.pop("headers", {})}
        if sequence is not None:
            headers["ts_request_sequence_id"] = sequence
        more.setdefault("timeout", DEADLINE)
        return requests.post(f"{self.inference}/predictions/{model}", data=body, headers=headers, **more)

    def describe(self, model: str, suffix: str = "") -> list[dict[str, Any]]:
        """Return what the management API says of a model."""
        response = requests.get(f"{self.management}/models/{model}{suffix}", timeout=DEADLINE)
        assert response.status_code == 200, response.text
        described: list[dict[str, Any]] = response.json()
        return described

    def pending(self, model: str) -> int:
        """Return how many requests of a model wait for a worker."""
        return int(self.describe(model)[0]["jobQueueStatus"]["pendingRequests"])

    def register(self, url: Path | str, **parameters: Any) -> requests.Response:
        """Register a model; ``initial_workers`` is 1 unless it is given."""
        query = {"url": str(url), "initial_workers": 1, **parameters}
        return requests.post(f"{self.management}/models", params=query, timeout=DEADLINE)

    def scale(self, model: str, workers: int, **parameters: Any) -> requests.Response:
        """Give a model that many workers, and wait for them unless ``synchronous`` says otherwise."""
        query = {"min_worker": workers, "max_worker": workers, "synchronous": "true", **parameters}
        return requests.put(f"{self.management}/models/{model}", params=query, timeout=DEADLINE)

    def unregister(self, model: str) -> requests.Response:
        """Unregister the default version of a model."""
        return requests.delete(f"{self.management}/models/{model}", timeout=DEADLINE)

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of the one series of a metric that has these labels."""
        text = requests.get(f"{self.metrics}/metrics", timeout=DEADLINE).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        (value,) = (each.value for each in samples if each.name == name and labels.items() <= each.labels.items())
        return value

    def model_log(self) -> str:
        """Return what the handlers have printed."""
        log = self.directory / "logs" / "model_log.log"
        return log.read_text(errors="replace") if log.exists() else ""


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def model_folder(directory: Path, name: str, handler: str, config: str = "") -> Path:
    """Write a plain model folder and return it."""
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "handler.py").write_text(handler)
    (folder / "model-config.yaml").write_text(config)
    return folder
