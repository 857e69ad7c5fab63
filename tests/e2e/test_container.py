"""The container's entry point starts real servers as SageMaker, Vertex AI and KServe expect them."""

import shutil
import sys
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from tests.ports import free_ports

from torchserve_py.archives.archiver.pack import PackOptions, pack

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


SCRIPT = """
import os
import time


def model_fn(model_dir):
    while not os.path.exists(os.path.join(model_dir, "weights")):
        time.sleep(0.05)
    if os.path.exists(os.path.join(model_dir, "too_large")):
        raise MemoryError
    return os.path.basename(model_dir)


def transform_fn(model, body, content_type, accept):
    import packaged

    return {"model": model, "value": packaged.VALUE}
"""


def script_folder(directory: Path, *files: str) -> Path:
    """Return the folder of a model for SageMaker, whose script needs a package that its requirements bring."""
    code = directory / "code"
    code.mkdir(parents=True)
    (code / "inference.py").write_text(SCRIPT)
    wheel = code / "packaged-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("packaged.py", "VALUE = 7\n")
        about = "packaged-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: packaged\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    (code / "requirements.txt").write_text(f"{wheel}\n")
    for file in files:
        (directory / file).touch()
    return directory


def test_sagemaker_with_a_script(tmp_path: Path, port: int) -> None:
    folder = script_folder(tmp_path / "answer")
    variables = {
        "SM_MODEL_DIR": str(folder),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_TS_MIN_WORKERS": "1",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "20",
    }
    with container(["serve"], variables) as server:
        server.inference = f"http://127.0.0.1:{port}"
        early = requests.get(f"{server.inference}/ping", timeout=180)
        assert (early.status_code, "does not have its minimum of workers" in early.text) == (503, True)
        (folder / "weights").touch()
        server.wait_ready()
        assert requests.get(f"{server.inference}/ping", timeout=180).status_code == 200
        answer = requests.post(f"{server.inference}/invocations", "x", timeout=180)
        assert answer.json() == {"model": "answer", "value": 7}
        batch = requests.get(f"{server.inference}/execution-parameters", timeout=180).json()
        assert batch == {"MaxConcurrentTransforms": 1, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": 20}


def test_sagemaker_with_packages_that_cannot_be_installed(tmp_path: Path, port: int) -> None:
    folder = script_folder(tmp_path / "answer")
    (folder / "code" / "requirements.txt").write_text("there-is-no-such-package\n")
    variables = {"SM_MODEL_DIR": str(folder), "SAGEMAKER_BIND_TO_PORT": str(port), "PIP_NO_INDEX": "1"}
    server = container(["serve"], variables)
    with ExitStack() as stack:
        stack.push(server)  # which is stopped at the end, and not waited for
        server.launch()
        assert server.process is not None
        assert server.process.wait(DEADLINE) == 1
        assert "The server cannot run: Custom pip package installation failed for model model" in server.log()


@pytest.mark.torch
@pytest.mark.parametrize("file", ["model.pt", "model.pt2"])
def test_sagemaker_with_a_model_without_a_script(tmp_path: Path, port: int, file: str) -> None:
    import torch

    folder = tmp_path / "model"
    folder.mkdir()
    double = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        double.weight.copy_(torch.eye(2) * 2)
    if file == "model.pt":
        torch.jit.script(double).save(str(folder / file))
    else:
        rows = torch.export.Dim("rows")
        torch.export.save(torch.export.export(double, (torch.ones(3, 2),), dynamic_shapes=({0: rows},)), folder / file)
    with container(["serve"], {"SM_MODEL_DIR": str(folder), "SAGEMAKER_BIND_TO_PORT": str(port)}) as server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        answer = requests.post(f"{server.inference}/invocations", json=[[1, 2], [3, 4], [5, 6]], timeout=180)
        assert answer.json() == [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]
        table = {"Content-Type": "text/csv", "Accept": "text/csv"}
        answer = requests.post(f"{server.inference}/invocations", "1,2\n3,4\n", headers=table, timeout=180)
        assert answer.text.split() == ["2.0,4.0", "6.0,8.0"]


@pytest.mark.torch
def test_kserve_with_weights_alone_in_both_protocols(tmp_path: Path, port: int) -> None:
    import torch

    torch.jit.script(torch.nn.Flatten()).save(str(tmp_path / "model.pt"))
    with container(["--model_name=flat", f"--model_dir={tmp_path}", f"--http_port={port}"], {}) as server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        body = {"instances": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}
        answer = requests.post(f"{server.inference}/v1/models/flat:predict", json=body, timeout=180)
        assert answer.json() == {"predictions": [[1, 2, 3, 4], [5, 6, 7, 8]]}
        tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
        answer = requests.post(f"{server.inference}/v2/models/flat/infer", json={"inputs": [tensor]}, timeout=180)
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]


def test_kserve_with_archives_and_folders(tmp_path: Path, port: int) -> None:
    model_folder(tmp_path, "one", DOUBLE)
    for kind in ("zip", "gztar"):
        shutil.make_archive(str(tmp_path / kind), kind, tmp_path / "one")
    with container([f"--model_dir={tmp_path}", f"--http_port={port}"], {}) as server:
        server.inference = f"http://127.0.0.1:{port}"
        server.wait_ready()
        for name in ("one", "zip", "gztar"):
            url = f"{server.inference}/v1/models/{name}:predict"
            answer = requests.post(url, json={"instances": [[1, 2]]}, timeout=180)
            assert answer.json() == {"predictions": [{"twice": [2, 4]}]}


def test_sagemaker_with_several_scripts(tmp_path: Path, port: int) -> None:
    variables = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": str(port)}
    with container(["serve"], variables):
        address = f"http://127.0.0.1:{port}"
        assert requests.get(f"{address}/ping", timeout=180).status_code == 200

        def load(name: str, *files: str) -> requests.Response:
            body = {"model_name": name, "url": str(script_folder(tmp_path / name, *files))}
            return requests.post(f"{address}/models", json=body, timeout=180)

        assert load("one", "weights").status_code == 200
        assert load("large", "weights", "too_large").status_code == 507
        listed = requests.get(f"{address}/models", timeout=180).json()["models"]
        assert [each["modelName"] for each in listed] == ["one"]
        answer = requests.post(f"{address}/models/one/invoke", "x", timeout=180)
        assert answer.json() == {"model": "one", "value": 7}
        target = {"X-Amzn-SageMaker-Target-Model": "one.tar.gz"}
        assert requests.post(f"{address}/invocations", "x", headers=target, timeout=180).json() == answer.json()
        assert requests.delete(f"{address}/models/one", timeout=180).status_code == 200
        assert requests.post(f"{address}/models/one/invoke", "x", timeout=180).status_code == 404


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


def test_azure(tmp_path: Path) -> None:
    """As a managed online deployment mounts a registered folder with an archive, and asks for its routes."""
    store = tmp_path / "azureml-models" / "double" / "1" / "model_store"
    store.mkdir(parents=True)
    handler = model_folder(tmp_path, "double", DOUBLE) / "handler.py"
    pack(PackOptions("double", str(handler), "1.0", export_path=str(store)))
    server = container([], {"AZUREML_MODEL_DIR": str(store.parent)})
    with server:
        server.wait_ready()
        for probe in ("/live", "/ready"):
            assert requests.get(f"{server.inference}{probe}", timeout=180).status_code == 200
        answer = requests.post(f"{server.inference}/predictions/double", json=[1, 2], timeout=180)
        assert answer.json() == {"twice": [2, 4]}


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
