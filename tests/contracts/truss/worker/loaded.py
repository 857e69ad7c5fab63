"""A Truss that a test writes into a folder, and loads."""

import asyncio
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # noqa: F401 - the fixture `load` forgets what was imported within a test
from tests.unit.ts.frontend_stub import load_message
from tests.unit.ts.sent_jobs import FakeConnection

from ts.contracts.async_calls.async_runtime import NO_INPUTS
from ts.contracts.truss import load_truss as loading
from ts.contracts.truss.truss_runtime import TrussRuntime
from ts.protocol.messages import TRUSS, InferRow

Load = Callable[..., "Loaded"]


class Loaded:
    """A Truss that was loaded from a folder."""

    def __init__(self, runtime: TrussRuntime, connection: FakeConnection, runner: asyncio.Runner) -> None:
        self.runtime = runtime
        self.connection = connection
        self._runner = runner

    def predict(self, inputs: Any = None) -> Any:
        row = InferRow("1", ((":endpoint", "predict"),), None, json.dumps(inputs).encode(), TRUSS, False)
        self._runner.run(self.runtime.run_job(row, NO_INPUTS))
        (result,) = self.connection.rows.pop("1")
        assert result[2] == 200, bytes(result[5])
        return json.loads(result[5])

    def wait(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write a Truss and load it; a fixture's folder stands for the places of the container."""
    monkeypatch.setenv("TRUSS_SECRETS_DIR", str(tmp_path / "secrets"))
    monkeypatch.setenv("TRUSS_DYNAMIC_CONFIG_DIR", str(tmp_path / "dynamic"))
    monkeypatch.setattr(loading, "_PAUSE_BETWEEN_ATTEMPTS", 0.0)
    monkeypatch.setattr(loading, "log_request_ids", lambda: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    runners: list[asyncio.Runner] = []

    def load_truss(model: str, config: str = "", **files: str) -> Loaded:
        folder = tmp_path / "mine"
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(textwrap.dedent(config))
        (folder / "model" / "model.py").write_text(textwrap.dedent(model))
        for name, text in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(textwrap.dedent(text))
        monkeypatch.chdir(folder)
        runners.append(asyncio.Runner())
        connection: Any = FakeConnection()
        message: Any = load_message(folder, contract="truss")
        return Loaded(loading.load_runtime(message, connection, runners[-1]), connection, runners[-1])

    yield load_truss
    for runner in runners:
        runner.close()
    for name in set(sys.modules) - modules:
        del sys.modules[name]
