"""Shapes that were to keep a worker busy, or fill its memory: its other requests are answered, and it stays alive."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgpack
import numpy as np
import pytest
import requests
from openpi_client import websocket_client_policy as policy_client
from tests.conformance.grpc_client import target
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, model_folder
from websockets.sync.client import connect

from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

#: Answers with what each row holds, whatever it is.
ECHO = """
def handle(data, context):
    return data and [str(row["body"]) for row in data]
"""
TRUSS = "class Model:\n    def predict(self, inputs):\n        return {'rows': len(inputs['x'].tolist())}\n"
BATCH = "batchSize: 4\nmaxBatchDelay: 300\n"
#: A worker that is busy for longer than this is killed (seconds).
RESPONSE_TIMEOUT = 20

#: To multiply these takes minutes. The sizes have no factor of two, so that the product cannot be had by shifting.
DEEP = [2**63 - 25] * 100_000
SHAPES = {
    "very many dimensions": (DEEP, "100000 dimensions"),
    "as many ones": ([1] * 100_000, "100000 dimensions"),
    "very many dimensions around nothing": ([0, *DEEP], "100001 dimensions"),
    "more than there is": ([2**62] * 60, "(60 dimensions)] needs "),
    "rows that hold nothing": ([2**40, 0], "[1099511627776, 0]"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "echo": model_folder(folder, "echo", ECHO, BATCH),
        "sentences": HANDLERS / "sentences",
        "reach": HANDLERS / "reach",
    }
    truss = folder / "truss"
    (truss / "model").mkdir(parents=True)
    (truss / "config.yaml").write_text("model_name: truss\n")
    (truss / "model" / "model.py").write_text(TRUSS)
    models["truss"] = truss
    properties = {"default_response_timeout": RESPONSE_TIMEOUT, "drain_timeout": 1}
    with RunningServer(models, properties) as running:
        running.wait_ready()
        yield running


@pytest.fixture(autouse=True)
def workers_stay(server: RunningServer) -> Iterator[None]:
    before = sorted(each.pid for each in server.workers())
    yield
    assert sorted(each.pid for each in server.workers()) == before


def infer(
    server: RunningServer, model: str, inputs: list[dict[str, Any]], behind: bytes | None = None
) -> requests.Response:
    text = json.dumps({"inputs": inputs}).encode()
    headers = {} if behind is None else {"Inference-Header-Content-Length": str(len(text))}
    url = f"{server.inference}/v2/models/{model}/infer"
    return requests.post(url, data=text + (behind or b""), headers=headers, timeout=DEADLINE)


def tensor(shape: list[int], datatype: str = "FP32", size: int | None = None) -> dict[str, Any]:
    data = {"data": []} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": "x", "shape": shape, "datatype": datatype, **data}


GOOD = {"name": "x", "shape": [1], "datatype": "FP32", "data": [3.0]}


@pytest.mark.parametrize(("shape", "word"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", ["json", "binary", "texts"])
def test_rest(server: RunningServer, shape: list[int], word: str, form: str) -> None:
    size = None if form == "json" else 0
    with ThreadPoolExecutor(4) as clients:
        hostile = clients.submit(infer, server, "echo", [tensor(shape, "BYTES" if form == "texts" else "FP32", size)])
        innocent = [clients.submit(infer, server, "echo", [GOOD]) for _ in range(3)]
        answer = hostile.result()
        assert [each.result().json()["outputs"][0]["data"] for each in innocent] == [["[3.]"]] * 3
    assert (answer.status_code, word in answer.text, len(answer.text) < 500) == (400, True, True), answer.text[:500]


@pytest.mark.parametrize(("shape", "word"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", ["raw", "contents", "texts"])
def test_grpc(server: RunningServer, shape: list[int], word: str, form: str) -> None:
    hostile = ModelInferRequest(model_name="echo")
    hostile.inputs.add(
        name="x", datatype="BYTES" if form == "texts" else "INT64", shape=[min(size, 2**63 - 1) for size in shape]
    )
    if form == "raw":
        hostile.raw_input_contents.append(b"")
    good = ModelInferRequest(model_name="echo")
    good.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(3)
    with grpc.insecure_channel(target(server)) as channel:
        call: Any = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        answer = call.future(hostile, timeout=DEADLINE)
        innocent = [call.future(good, timeout=DEADLINE) for _ in range(3)]
        assert [each.result().outputs[0].contents.bytes_contents[0] for each in innocent] == [b"[3]"] * 3
        assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert word in answer.details()
        assert len(answer.details()) < 500


@pytest.mark.parametrize(("shape", "word"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_models_of_mlserver(server: RunningServer, shape: list[int], word: str, datatype: str) -> None:
    answer = infer(server, "sentences", [tensor(shape, datatype)])
    if "needs" in word and datatype == "BYTES":  # MLServer's texts may have any shape
        assert answer.status_code != 400
    else:
        assert (answer.status_code, word in answer.text, len(answer.text) < 500) == (400, True, True), answer.text[:500]


def test_another_clients_episode_keeps_its_state(server: RunningServer) -> None:
    host, _, port = server.inference.removeprefix("http://").partition(":")
    robot = policy_client.WebsocketClientPolicy(host, int(port))
    seen = {"state": np.zeros(3, np.float32), "target": np.ones(3, np.float32)}
    first = robot.infer(seen)["actions"]
    hostile = [{b"__ndarray__": True, b"data": b"", b"dtype": "<f4", b"shape": shape} for shape, _ in SHAPES.values()]
    hostile.append({b"__ndarray__": True, b"data": b"\xff" * 4, b"dtype": "<U1", b"shape": [1]})
    for array in hostile:
        with connect(f"ws://{host}:{port}/", max_size=None) as socket:
            socket.recv(timeout=DEADLINE)
            socket.send(msgpack.packb({"state": array, "target": seen["target"].tolist()}))
            answer = socket.recv(timeout=DEADLINE)
            assert isinstance(answer, str), "an error is a text"
            assert "No observation of openpi" in answer
            assert len(answer) < 2000
    again = robot.infer(seen)["actions"]
    assert np.abs(again).max() > np.abs(first).max(), "the velocity of the first step is not forgotten"


@pytest.mark.parametrize(
    ("kind", "shape", "data"),
    [("<f4", [2**40, 0], b""), ("<S0", [2**40], b""), ("<f4", DEEP, b""), ("<U1", [1], b"\xff" * 4)],
    ids=["empty rows", "empty texts", "dimensions", "no character"],
)
def test_arrays_for_a_truss(server: RunningServer, kind: str, shape: list[int], data: bytes) -> None:
    array = {b"nd": True, b"type": kind, b"kind": b"", b"shape": shape, b"data": data}
    answer = requests.post(
        f"{server.inference}/v1/models/truss:predict",
        data=msgpack.packb({"x": array}),
        headers={"content-type": "application/octet-stream"},
        timeout=DEADLINE,
    )
    assert (answer.status_code, len(answer.text) < 2000) == (400, True), answer.text[:500]
