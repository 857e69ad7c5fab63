"""Without a package that only some users need, the server serves; what needs the package names it."""

import subprocess
import sys
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

from ts.jobs.search_path import EXTRA_OF
from ts.process.worker import load_failure

ECHO = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""
#: The modules of the packages in the extras of setup.cfg that the server or its workers import, by the extra.
OPTIONAL = {
    "torch": ("torch", "numpy"),
    "tls": ("cryptography",),
    "vision": ("PIL",),
    "gpu": ("pynvml",),
    "explain": ("captum",),
    "huggingface": ("transformers",),
    "onnx": ("onnxruntime",),
    "safetensors": ("safetensors",),
    "truss": ("fastapi", "starlette"),
    "tracing": ("opentelemetry",),
    "mlserver": ("mlserver", "pandas"),
    "simdjson": ("simdjson",),
    "redis": ("redis",),
    "gr00t": ("zmq",),
    "ray": ("ray",),
    "speech": ("pocketsphinx", "silero_vad"),
    "client": ("httpx",),
    "replay": ("aiohttp", "yarl"),
}


def site_without(modules: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Return the environment of a server and workers that cannot import these modules."""
    folder.mkdir()
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in modules)]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("extra", OPTIONAL)
def test_the_server_serves_without(extra: str, tmp_path: Path) -> None:
    environment = site_without(OPTIONAL[extra], tmp_path / "site")
    with RunningServer({"echo": model_folder(tmp_path, "echo", ECHO)}, environment=environment) as server:
        # It waits for the worker, as any request does.
        answer = requests.post(f"{server.inference}/predictions/echo", data=b"hello", timeout=DEADLINE)
        assert (answer.status_code, answer.content) == (200, b"hello")


@pytest.mark.parametrize(
    ("modules", "lines", "said"),
    [
        (("redis",), "fleet_state=redis://127.0.0.1:6379\n", "torchserve-py[redis]"),
        (("opentelemetry",), "traces=http://127.0.0.1:4318\n", "torchserve-py[tracing]"),
        (("zmq",), "gr00t_port=0\n", "torchserve-py[gr00t]"),
    ],
)
def test_what_needs_a_package_names_it(
    modules: tuple[str, ...], lines: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.properties").write_text(f"model_store={tmp_path}\n{lines}")
    for name, value in site_without(modules, tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # one server runs per temporary directory
    command = [sys.executable, "-m", "torchserve_py.cli", "--foreground", "--disable-token-auth"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 1
    assert said in ended.stdout + ended.stderr


@pytest.mark.parametrize(("module", "extra"), EXTRA_OF.items())
def test_a_model_whose_import_fails_names_what_brings_the_package(module: str, extra: str) -> None:
    assert module in OPTIONAL[extra]
    _, told = load_failure(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert told.endswith(f" nor installed for {sys.executable}: pip install 'torchserve-py[{extra}]'")


def test_a_replay_names_its_package_and_the_help_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in site_without(OPTIONAL["replay"], tmp_path / "site").items():
        monkeypatch.setenv(name, value)

    def replay(argument: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torchserve_py.cli", "replay", argument]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)

    assert replay("--help").returncode == 0
    told = replay("journal")
    assert told.returncode == 2
    assert "pip install 'torchserve-py[replay]'" in told.stderr


def test_a_request_with_tensors_names_the_package_that_reads_them(tmp_path: Path) -> None:
    environment = site_without(("numpy",), tmp_path / "site")
    with RunningServer({"echo": model_folder(tmp_path, "echo", ECHO)}, environment=environment) as server:
        tensors = {"inputs": [{"name": "body", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
        answer = requests.post(f"{server.inference}/v2/models/echo/infer", json=tensors, timeout=DEADLINE)
        assert answer.status_code == 501
        assert "need the package numpy, which the server lacks: pip install numpy" in answer.json()["error"]


SCRIPT = """
import json


def model_fn(model_dir):
    return 2


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(numbers, factor):
    return [number * factor for number in numbers]


def output_fn(numbers, accept):
    return json.dumps(numbers), "application/json"
"""


def test_a_script_for_sagemaker_with_functions_of_its_own_needs_no_package(tmp_path: Path) -> None:
    (tmp_path / "doubler").mkdir()
    (tmp_path / "doubler" / "inference.py").write_text(SCRIPT)
    environment = site_without(("numpy", "torch"), tmp_path / "site")
    with RunningServer({"doubler": tmp_path / "doubler"}, environment=environment) as server:
        answer = requests.post(f"{server.inference}/invocations", json=[1, 2], timeout=DEADLINE)
        assert (answer.status_code, answer.json()) == (200, [2, 4]), server.log()
