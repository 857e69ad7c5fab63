"""KServe's end-to-end tests of its TorchServe runtime, with a server in the container's layout.

The requests are those of kserve/kserve, ``test/e2e/predictor/test_torchserve.py``; the model reads a digit from a
picture as the one of that test does, but from its only pixel.
"""

import base64
import io
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tests.e2e.running_server import DEADLINE, RunningServer
from tests.ports import free_ports

from torchserve_py.archives.archiver.pack import PackOptions, pack
from ts.apis.open_inference.protos.infer_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse

image_module = pytest.importorskip("PIL.Image")

HANDLER = """
import base64
import io

from PIL import Image


def handle(data, context):
    return None if data is None else [digit(row) for row in data]


def digit(row):
    image = row.get("data") or row.get("body")
    if isinstance(image, str):
        image = base64.b64decode(image)
    if isinstance(image, (bytearray, bytes)):
        return Image.open(io.BytesIO(image)).getpixel((0, 0))
    return int(max(max(line) for line in image[0]))
"""
SNAPSHOT = (
    '{"name":"startup.cfg","modelCount":1,"models":{"mnist":{"1.0":{"defaultVersion":true,"marName":"mnist.mar",'
    '"minWorkers":1,"maxWorkers":5,"batchSize":1,"maxBatchDelay":10,"responseTimeout":120}}}}'
)


def picture(digit: int) -> bytes:
    buffer = io.BytesIO()
    image_module.new("L", (28, 28), digit).save(buffer, "PNG")
    return buffer.getvalue()


@contextmanager
def runtime(folder: Path, protocol: str, envelope: str) -> Iterator[tuple[str, int]]:
    """Start what kserve-torchserve starts, on ports that are free; yield the address and the port of gRPC."""
    models = folder / "models"
    (models / "config").mkdir(parents=True)
    (folder / "mnist_handler.py").write_text(HANDLER)
    (models / "model-store").mkdir()
    pack(PackOptions("mnist", str(folder / "mnist_handler.py"), "1.0", export_path=str(models / "model-store")))
    http, torchserves, metrics, grpc_port = free_ports(4)
    config = models / "config" / "config.properties"
    config.write_text(
        f"inference_address=http://0.0.0.0:{torchserves}\nmanagement_address=http://0.0.0.0:{torchserves}\n"
        f"metrics_address=http://127.0.0.1:{metrics}\ngrpc_inference_port=7070\ngrpc_management_port=0\n"
        "enable_metrics_api=true\nmetrics_format=prometheus\nNUM_WORKERS=1\nnumber_of_netty_threads=4\n"
        "job_queue_size=10\nenable_envvars_config=true\ninstall_py_dep_per_model=true\n"
        f"model_store={models}/model-store\nmodel_snapshot={SNAPSHOT}\n"
    )
    server = RunningServer(environment={"PROTOCOL_VERSION": protocol, "TS_SERVICE_ENVELOPE": envelope})
    server.command = [
        *(sys.executable, "-m", "torchserve_py.tools.operator_tools.container"),
        *("torchserve", "--start", f"--model-store={models}/model-store", f"--ts-config={config}"),
        *(f"--http_port={http}", f"--grpc_port={grpc_port}"),
    ]
    server.inference = f"http://127.0.0.1:{http}"
    with server:
        server.wait_ready()
        yield server.inference, grpc_port


def post(url: str, document: Any) -> requests.Response:
    answer = requests.post(url, json=document, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("application/json")
    return answer


def test_v1(tmp_path: Path) -> None:
    """``test_torchserve_kserve`` and ``test_torchserve_runtime_kserve``."""
    with runtime(tmp_path, "v1", "kserve") as (address, _):
        assert requests.get(f"{address}/v1/models/mnist", timeout=DEADLINE).json()["ready"]
        instance = {"data": base64.b64encode(picture(2)).decode(), "target": 0}
        answer = post(f"{address}/v1/models/mnist:predict", {"instances": [instance, instance]})
        assert answer.json() == {"predictions": [2, 2]}
        failed = requests.post(
            f"{address}/v1/models/mnist:predict", json={"instances": [{"data": "?"}]}, timeout=DEADLINE
        )
        assert (failed.status_code, list(failed.json())) == (500, ["error"])


def test_v2_over_rest_and_grpc(tmp_path: Path) -> None:
    """``test_torchserve_v2_kserve`` and ``test_torchserve_grpc_v2``."""
    with runtime(tmp_path, "v2", "kservev2") as (address, port):
        assert requests.get(f"{address}/v2/models/mnist/ready", timeout=DEADLINE).status_code == 200
        pixels = np.zeros((1, 28, 28), np.float32)
        pixels[0, 4, 11] = 1
        tensor = {"name": "input-0", "shape": [1, 28, 28], "datatype": "FP32", "data": pixels.tolist()}
        answer = post(f"{address}/v2/models/mnist/infer", {"id": "d3b15cad", "inputs": [tensor]}).json()
        assert (answer["id"], answer["outputs"][0]["data"]) == ("d3b15cad", [1])
        binary = triton.InferInput("input-0", [1, 28, 28], "FP32").set_data_from_numpy(pixels, binary_data=True)
        wanted = [triton.InferRequestedOutput("input-0", binary_data=True)]
        with closing(triton.InferenceServerClient(address.removeprefix("http://"))) as client:
            result = client.infer("mnist", [binary], outputs=wanted)
        assert result.get_output("input-0")["parameters"] == {"binary_data_size": 8}
        assert result.as_numpy("input-0").tolist() == [1]
        item = ModelInferRequest.InferInputTensor(
            name="input-0", datatype="BYTES", contents=InferTensorContents(bytes_contents=[picture(2)])
        )
        call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        response = call(ModelInferRequest(model_name="mnist", inputs=[item]), timeout=DEADLINE)
        assert list(response.outputs[0].contents.int64_contents) == [2]
