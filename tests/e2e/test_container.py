"""The container's entry point starts real servers as SageMaker, Vertex AI and KServe expect them."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import RunningServer, model_folder
from tests.ports import free_ports

DOUBLE = """
def handle(data, context):
    return None if data is None else [double(row) for row in data]


def double(row):
    row = row if isinstance(row, list | str) else row.get("body", row.get("data"))
    return {"twice": [number * 2 for number in row]}
"""


def container(arguments: list[str], environment: Mapping[str, str]) -> RunningServer:
    """Return a server started as the image starts it; its working directory has the model store."""
    server = RunningServer(environment=environment)
    server.command = [sys.executable, "-m", "torchserve_py.tools.operator_tools.container", *arguments]
    (server.directory / "model_store").mkdir()
    return server


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def test_sagemaker(tmp_path: Path, port: int) -> None:
    folder = model_folder(tmp_path, "double", DOUBLE)
    with container(["serve"], {"SM_MODEL_DIR": str(folder), "SAGEMAKER_BIND_TO_PORT": str(port)}) as server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        assert requests.get(f"{server.inference}/ping", timeout=180).status_code == 200
        answer = requests.post(f"{server.inference}/invocations", json=[1, 2], timeout=180)
        assert answer.json() == {"twice": [2, 4]}


def test_vertex(tmp_path: Path, port: int) -> None:
    endpoint = "/v1/endpoints/12/deployedModels/34"
    environment = {
        "AIP_HTTP_PORT": str(port),
        "AIP_HEALTH_ROUTE": endpoint,
        "AIP_PREDICT_ROUTE": f"{endpoint}:predict",
    }
    server = container(["--models", "all"], environment)
    model_folder(server.directory / "model_store", "double", DOUBLE)
    with server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        assert requests.get(f"{server.inference}{endpoint}", timeout=180).status_code == 200
        body = {"instances": [[1, 2], [3]]}
        answer = requests.post(f"{server.inference}{endpoint}:predict", json=body, timeout=180)
        assert answer.json() == {"predictions": [{"twice": [2, 4]}, {"twice": [6]}]}


@pytest.mark.parametrize("configured", [True, False])
def test_kserve(tmp_path: Path, port: int, configured: bool) -> None:
    models = tmp_path / "models"
    store = models / "model-store"
    store.mkdir(parents=True)
    model_folder(store, "double", DOUBLE)
    if configured:
        (models / "config").mkdir()
        text = "inference_address=http://0.0.0.0:8085\nload_models=all\nservice_envelope=kserve\n"
        (models / "config" / "config.properties").write_text(
            f"{text}grpc_inference_port=0\nmetrics_address=http://127.0.0.1:0\n"
        )
    arguments = ["--model_name=double", f"--model_dir={models}", f"--http_port={port}"]
    with container(arguments, {}) as server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        body = {"instances": [[1, 2], [3]]}
        answer = requests.post(f"{server.inference}/v1/models/double:predict", json=body, timeout=180)
        assert answer.json() == {"predictions": [{"twice": [2, 4]}, {"twice": [6]}]}
