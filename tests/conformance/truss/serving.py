"""A running server with Trusses, whose folders are made of the classes in `models`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml
from tests.e2e.running_server import DEADLINE, RunningServer, eventually

_MODELS = Path(__file__).parent / "models"
_FEW = 60
_CLIENTS = 100

CODE = "x-baseten-error-code"
SOURCE = "x-baseten-error-source"


@dataclass(frozen=True)
class Truss:
    """One Truss: a class of a file in `models`, the keys of its config.yaml and model-config.yaml, and other files."""

    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: Path, name: str) -> Path:
        """Make its folder; ``{here}`` in a value of its environment variables is the folder's path."""
        folder = directory / name
        module, _, class_name = self.source.partition(":")
        (folder / "model").mkdir(parents=True)
        shutil.copy(_MODELS / f"{module}.py", folder / "model" / "model.py")
        variables = {
            key: value.format(here=folder) if isinstance(value, str) else value
            for key, value in self.config.get("environment_variables", {}).items()
        }
        config = {"model_class_name": class_name, **self.config, "environment_variables": variables}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        if self.options:
            (folder / "model-config.yaml").write_text(yaml.safe_dump(dict(self.options)))
        for path, text in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder


class Serving:
    """A server, and a client of its Trusses."""

    def __init__(self, trusses: Mapping[str, Truss], directory: Path, **properties: Any) -> None:
        self.directory = directory
        self.folders = {name: truss.write(directory, name) for name, truss in trusses.items()}
        self.running = RunningServer(self.folders, properties={"worker_heartbeat_timeout": _FEW, **properties})
        limits = httpx.Limits(max_connections=_CLIENTS, max_keepalive_connections=0)
        self.client = httpx.Client(base_url=self.running.inference, timeout=DEADLINE, limits=limits)
        self._threads = ThreadPoolExecutor(_CLIENTS)

    def __enter__(self) -> Serving:
        self.running.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running.__exit__(kind, error, trace)
        self.client.close()
        self._threads.shutdown()

    def wait_loaded(self, *names: str) -> None:
        """Wait until these Trusses, or all, are loaded."""
        for name in names or self.folders:
            try:
                eventually(lambda name=name: self.get(name, "/loaded").status_code == 200, f"{name} is loaded")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.running.story()[-5000:]}") from None

    def predict(self, name: str, inputs: Any = None, **more: Any) -> httpx.Response:
        """Post to a Truss's predict: ``inputs`` as JSON, or ``content`` as it is."""
        if "content" not in more:
            more["content"] = json.dumps(inputs)
        return self.client.post(f"/v1/models/{name}:predict", **more)

    def begin(self, name: str, inputs: Any = None, **more: Any) -> Future[httpx.Response]:
        """The same, in a thread."""
        return self._threads.submit(self.predict, name, inputs, **more)

    def stream(self, name: str, inputs: Any, **more: Any) -> Any:
        """The same, as a context manager with a response that has not been read."""
        return self.client.stream("POST", f"/v1/models/{name}:predict", content=json.dumps(inputs), **more)

    def call(self, name: str, endpoint: str, inputs: Any = None, **more: Any) -> httpx.Response:
        """Post to another endpoint of a Truss, such as ``completions``."""
        return self.client.post(f"/v1/models/{name}/{endpoint}", content=json.dumps(inputs), **more)

    def ask(self, name: str, inputs: Any = None) -> Any:
        """What a Truss's ``completions`` answers; tests talk to their models by it, for it needs no slot."""
        response = self.call(name, "completions", inputs)
        assert response.status_code == 200, response.text
        return response.json()

    def get(self, name: str, path: str = "") -> httpx.Response:
        """Get a path of a Truss: nothing for readiness, ``/loaded``, ``/schema``."""
        return self.client.get(f"/v1/models/{name}{path}")

    def register(self, name: str, truss: Truss, *, wait: bool = True) -> httpx.Response:
        """Register one more Truss."""
        self.folders[name] = truss.write(self.directory, name)
        query = {"url": str(self.folders[name]), "initial_workers": 1, "synchronous": str(wait).lower()}
        return httpx.post(f"{self.running.management}/models", params=query, timeout=DEADLINE)

    def unregister(self, name: str) -> None:
        """Unregister a Truss."""
        assert httpx.delete(f"{self.running.management}/models/{name}", timeout=DEADLINE).status_code == 200

    def log(self) -> str:
        """What the models have printed and logged."""
        return self.running.model_log()

    def wait_for_log(self, text: str, start: int = 0) -> str:
        """Wait until the log has a text behind ``start`` characters, and return it from there on."""
        eventually(lambda: text in self.log()[start:], f"the log has {text!r}")
        return self.log()[start:]


def is_error(response: httpx.Response, status: int, code: int) -> Any:
    """Assert that a response is an error of that status and code, and return what it says."""
    assert (response.status_code, response.headers.get(CODE)) == (status, str(code)), response.text
    assert response.headers[SOURCE] == "04"
    return response.json()["error"]
