"""The models of SageMaker's PyTorch toolkit's own local tests, served as the container does, without the toolkit.

    python -m tests.moves_in.sagemaker_scripts CHECKOUT        (of aws/sagemaker-pytorch-inference-toolkit)

What its tests in ``test/integration/local`` ask of a container is asked here; its weights that are in Git LFS and not
there are left out.
"""

import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import requests
from tests.e2e.running_server import RunningServer, eventually
from tests.ports import free_ports

JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"
LIMIT = 180
#: Real weights are larger; a pointer of Git LFS is not.
POINTER = 1024


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def csv(array: Any) -> bytes:
    buffer = io.StringIO()
    np.savetxt(buffer, array, delimiter=",")
    return buffer.getvalue().encode()


WRITE: dict[str, Callable[[Any], bytes]] = {JSON: lambda array: json.dumps(array.tolist()).encode(), CSV: csv, NPY: npy}
READ: dict[str, Callable[[bytes], Any]] = {
    JSON: lambda body: np.array(json.loads(body)),
    CSV: lambda body: np.genfromtxt(io.BytesIO(body), delimiter=","),
    NPY: lambda body: np.load(io.BytesIO(body)),
}


@contextmanager
def container(**variables: str) -> Iterator[str]:
    """Start what the image starts; yield its address."""
    port = free_ports(1)[0]
    server = RunningServer(environment={"SAGEMAKER_BIND_TO_PORT": str(port), **variables})
    server.command = [sys.executable, "-m", "torchserve_py.tools.operator_tools.container", "serve"]
    (server.directory / "model_store").mkdir()
    address = f"http://127.0.0.1:{port}"
    with server:
        eventually(lambda: requests.get(f"{address}/ping", timeout=LIMIT).status_code == 200, "/ping is 200")
        yield address


def copied(folder: Path, script: str) -> dict[str, str]:
    """Return the variables that serve a copy of a model's folder; one of the toolkit's scripts writes into it."""
    copy = Path(tempfile.mkdtemp()) / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("1d"))
    return {"SM_MODEL_DIR": str(copy), "SAGEMAKER_PROGRAM": script}


def check_digits(folder: Path, script: str, content_type: str, shape: tuple[int, ...]) -> None:
    """``test_serve_json``, ``test_serve_npy`` and ``test_serve_csv``, with answers in all three types."""
    batch = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    with container(**copied(folder, script), SAGEMAKER_MODEL_SERVER_WORKERS="1") as address:
        for accept in (JSON, CSV, NPY):
            headers = {"Content-Type": content_type, "Accept": accept}
            body = WRITE[content_type](batch)
            answer = requests.post(f"{address}/invocations", body, headers=headers, timeout=LIMIT)
            assert answer.status_code == 200, answer.text
            assert READ[accept](answer.content).shape == (shape[0], 10)
            print(f"{script}: {content_type} in, {accept} out")


def check_model_fn_once(folder: Path) -> None:
    """``test_serving_calls_model_fn_once``."""
    variables = copied(folder, "call_model_fn_once.py")
    with container(**variables, SAGEMAKER_MODEL_SERVER_WORKERS="2") as address:
        for _ in range(3):
            answer = requests.post(f"{address}/invocations", b"input", timeout=LIMIT)
            assert (answer.status_code, answer.content) == (200, b"output"), answer.text
    print("call_model_fn_once.py: model_fn is called once per worker")


def check_several(folders: dict[str, Path]) -> None:
    """``test_multi_model_endpoint_local``: load, list, unload, and the statuses of mistakes."""
    with container(SAGEMAKER_MULTI_MODEL="true", SAGEMAKER_PROGRAM="mnist_1d.py") as address:
        assert requests.get(f"{address}/models", timeout=LIMIT).json()["models"] == []

        def load(name: str, url: str) -> requests.Response:
            return requests.post(f"{address}/models", json={"model_name": name, "url": url}, timeout=LIMIT)

        listed = []
        for name, folder in folders.items():
            loaded = load(name, str(folder))
            assert loaded.json()["status"] == f'Model "{name}" Version: 1.0 registered with 1 initial workers'
            listed.append({"modelName": name, "modelUrl": str(folder)})
            assert requests.get(f"{address}/models", timeout=LIMIT).json()["models"] == listed
        first, last = listed[0]["modelName"], listed[-1]["modelName"]
        unloaded = requests.delete(f"{address}/models/{first}", timeout=LIMIT)
        assert unloaded.json()["status"] == f'Model "{first}" unregistered'
        assert load("banana", "/banana").status_code == 404
        assert requests.delete(f"{address}/models/{first}", timeout=LIMIT).status_code == 404
        assert load(last, str(folders[last])).status_code == 409
        batch = npy(np.zeros((2, 784), np.float32))
        headers = {"Content-Type": NPY}
        answer = requests.post(f"{address}/models/{last}/invoke", batch, headers=headers, timeout=LIMIT)
        assert np.array(answer.json()).shape == (2, 10)
    print("multi-model endpoint: load, list, unload, invoke, 404 and 409")


def main() -> None:
    """Run what the toolkit's local tests run."""
    resources = Path(sys.argv[1]) / "test" / "resources"
    digits = resources / "mnist" / "model_cpu"
    assert (digits / "torch_model.pth").stat().st_size > POINTER, "the weights are not there: git lfs pull"
    for content_type in (JSON, NPY):
        check_digits(digits, "mnist.py", content_type, (100, 1, 28, 28))
    check_digits(digits / "1d", "mnist_1d.py", CSV, (100, 784))
    check_model_fn_once(digits)
    check_several(
        {"digits": digits / "1d", "more_digits": Path(shutil.copytree(digits / "1d", tempfile.mkdtemp() + "/m"))}
    )


if __name__ == "__main__":
    main()
