"""Take a feature's folders and its row away, and with it those that need it: the rest serves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from tests.e2e.serve_command import ServeCommand

from torchserve_py import plugins

ROOT = Path(__file__).parents[2]
PACKAGES = ("frontend/torchserve_py", "backend/ts")
ECHO = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""
#: Python imports this when it starts: the server, its warm parent and its workers.
WITHOUT_PACKAGES = """
import sys

gone = "aiohttp argcomplete google.protobuf grpc hpack opentelemetry python_multipart redis websockets"
for name in gone.split():
    sys.modules[name] = None
"""
#: The features that need packages which nothing else does.
WITH_PACKAGES = ("downloads", "fleet", "forms", "grpc", "live", "redis", "replay", "tracing")
SHOUT = """
from ts import serve


@serve
def shout(text: str) -> str:
    return text.upper()
"""


def gone_with(name: str) -> set[str]:
    """The feature, and all that need it."""
    gone = {name}
    while more := {each.name for each in plugins.plugins() if gone & set(each.needs)} - gone:
        gone |= more
    return gone


def without(names: set[str], folder: Path) -> str:
    """Copy the packages but for these features; return what finds them."""
    for package in PACKAGES:
        target = folder / package
        shutil.copytree(ROOT / package, target)  # with what is compiled
        for name in names:
            shutil.rmtree(target / "features" / name, ignore_errors=True)
    table = folder / PACKAGES[0] / "plugins.py"
    rows = table.read_text().splitlines(keepends=True)
    kept = [row for row in rows if row.strip() not in {f'"{name}",' for name in names}]
    assert len(rows) - len(kept) == len(names)
    table.write_text("".join(kept))
    return os.pathsep.join(str(folder / each) for each in ("frontend", "backend"))


def without_packages(folder: Path) -> str:
    """Write what keeps Python from importing the packages that only features use; return its folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT_PACKAGES)
    return str(folder)


def test_the_kernel_serves_without_features_and_their_packages(tmp_path: Path) -> None:
    path = os.pathsep.join((without_packages(tmp_path / "site"), without(set(plugins.BUILT_IN), tmp_path / "copy")))
    with RunningServer({"echo": model_folder(tmp_path, "echo", ECHO)}, environment={"PYTHONPATH": path}) as server:
        # It waits for the worker, as any request does.
        answer = requests.post(f"{server.inference}/predictions/echo", data=b"hello", timeout=DEADLINE)
        assert (answer.status_code, answer.content) == (200, b"hello")


@pytest.mark.parametrize("name", WITH_PACKAGES)
def test_the_rest_serves(name: str, tmp_path: Path) -> None:
    gone = gone_with(name)
    path = without(gone, tmp_path / "copy")
    with RunningServer({"echo": model_folder(tmp_path, "echo", ECHO)}, environment={"PYTHONPATH": path}) as server:
        # It waits for the worker, as any request does.
        answer = requests.post(f"{server.inference}/predictions/echo", data=b"hello", timeout=DEADLINE)
        assert (answer.status_code, answer.content) == (200, b"hello")
        described = requests.options(f"{server.inference}/", timeout=DEADLINE).json()
        assert "/predictions/{model_name}" in described["paths"]
    command = [sys.executable, "-m", "torchserve_py.cli", "--help"]
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE, check=False).returncode == 0


def test_the_first_minute_needs_no_grpc(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    path = without(gone_with("grpc"), tmp_path / "copy")
    with ServeCommand(tmp_path, "shout.py", variables={"PYTHONPATH": path}) as command:
        command.wait_until_serving()
        assert command.predict("shout", "hello").text == "HELLO"
        assert "gRPC" not in command.printed()
