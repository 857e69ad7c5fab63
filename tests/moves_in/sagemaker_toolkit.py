"""SageMaker's PyTorch toolkit starts the server as in its containers: one model, and several that come and go.

Runs in an environment with sagemaker-pytorch-inference and this server, and with process ids of its own: the toolkit
takes any server among the processes that it sees for the one that it has started.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import requests

#: What a container's entry point runs. The toolkit writes the configuration below /etc, which only containers let it.
START = """
import sys

from sagemaker_pytorch_serving_container import serving, torchserve

torchserve.TS_CONFIG_FILE = sys.argv[1]
serving.main()
"""
SCRIPT = """
import json


def model_fn(model_dir):
    with open(f"{model_dir}/factor.json") as file:
        return json.load(file)


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(numbers, factor):
    return [number * factor for number in numbers]


def output_fn(numbers, accept):
    return json.dumps(numbers)
"""
LIMIT = 60


def write_model(folder: Path, factor: int) -> None:
    """A model as SageMaker unpacks it: its data, and its code below `code`."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "inference.py").write_text(SCRIPT)
    (folder / "factor.json").write_text(json.dumps(factor))


@contextmanager
def started(base: Path, **environment: str) -> Iterator[str]:
    """Start the toolkit, and end it as SageMaker does: with SIGTERM."""
    port, metrics_port = free_port(), free_port()
    commands = Path(sys.executable).parent
    variables = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "SAGEMAKER_BASE_DIR": str(base),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "TMPDIR": str(base),
        "TS_METRICS_ADDRESS": f"http://127.0.0.1:{metrics_port}",
        "TS_GRPC_INFERENCE_PORT": "0",
        "TS_GRPC_MANAGEMENT_PORT": "0",
        **environment,
    }
    command = [sys.executable, "-c", START, str(base / "sagemaker-ts.properties")]
    with (base / "output").open("wb") as output:
        toolkit = subprocess.Popen(command, cwd=base, env=variables, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for_ping(address, toolkit)
        yield address
        toolkit.send_signal(signal.SIGTERM)
        toolkit.wait(LIMIT)
        assert is_closed(address), "the server still listens"
    except BaseException:
        print((base / "output").read_text()[-3000:])
        raise
    finally:
        if toolkit.poll() is None:
            toolkit.terminate()
            toolkit.wait(LIMIT)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for_ping(address: str, toolkit: subprocess.Popen[bytes]) -> None:
    """Wait until the endpoint is well."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        assert toolkit.poll() is None, "the toolkit ended"
        try:
            if requests.get(f"{address}/ping", timeout=LIMIT).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    raise TimeoutError("/ping is not 200")


def is_closed(address: str) -> bool:
    """Whether nobody listens any longer."""
    try:
        requests.get(f"{address}/ping", timeout=LIMIT)
    except requests.ConnectionError:
        return True
    return False


def ask(url: str) -> list[int]:
    """Invoke a model."""
    answer = requests.post(url, json=[1, 2], timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    numbers: list[int] = answer.json()
    return numbers


def check_one_model() -> None:
    """An endpoint with one model."""
    base = Path(tempfile.mkdtemp())
    write_model(base / "model", 3)
    with started(base, SAGEMAKER_PROGRAM="inference.py") as address:
        assert ask(f"{address}/invocations") == [3, 6]
    print("single-model endpoint: starts, /ping, /invocations, SIGTERM")


def check_many_models() -> None:
    """An endpoint whose models are loaded and unloaded."""
    base = Path(tempfile.mkdtemp())
    with started(base, SAGEMAKER_MULTI_MODEL="true", SAGEMAKER_PROGRAM="inference.py") as address:
        for factor in (3, 4):
            write_model(base / f"m{factor}", factor)
            body = {"model_name": f"m{factor}", "url": str(base / f"m{factor}")}
            loaded = requests.post(f"{address}/models", json=body, timeout=LIMIT)
            assert loaded.status_code == 200, loaded.text
            assert ask(f"{address}/models/m{factor}/invoke") == [factor, 2 * factor]
        assert len(requests.get(f"{address}/models", timeout=LIMIT).json()["models"]) == 2
        assert requests.delete(f"{address}/models/m3", timeout=LIMIT).status_code == 200
        assert requests.post(f"{address}/models/m3/invoke", json=[1], timeout=LIMIT).status_code == 404
    print("multi-model endpoint: load, invoke, list, unload, SIGTERM")


def main() -> None:
    """Both kinds of endpoint."""
    print("sagemaker-pytorch-inference", version("sagemaker-pytorch-inference"))
    check_one_model()
    check_many_models()


if __name__ == "__main__":
    main()
