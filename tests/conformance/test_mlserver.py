"""One folder served by MLServer and by this server answers the same, and MLServer's own clients work with both."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.conformance.grpc_client import target
from tests.conformance.real_mlserver import MLSERVER, real_mlserver
from tests.e2e.running_server import DEADLINE, RunningServer

CLIENT = Path(__file__).with_name("mlserver_client.py")

MODEL = """
import sys

import pandas as pd
from mlserver import MLModel, log
from mlserver.codecs import NumpyRequestCodec, StringCodec
from mlserver.errors import MLServerError
from mlserver.types import InferenceResponse


class Twice(MLModel):
    async def load(self):
        print("class from", sys.modules[MLModel.__module__].__file__)
        return True

    async def predict(self, payload):
        log(predictions=1)
        if getattr(payload.parameters, "fail", None):
            raise MLServerError("as you wish", payload.parameters.fail)
        value = self.decode_request(payload, default_codec=NumpyRequestCodec)
        return self.encode_response(value * 2 if isinstance(value, pd.DataFrame) else 2 * value)

    async def predict_stream(self, payloads):
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                output = StringCodec.encode_output("word", [word])
                yield InferenceResponse(model_name=self.name, outputs=[output])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "twice"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    described = {"name": "x", "datatype": "FP64", "shape": [-1, 2], "parameters": {"content_type": "np"}}
    values = {"name": "twice", "implementation": "model.Twice", "inputs": [described], "parameters": {"version": "v1"}}
    (folder / "model-settings.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer({"twice": folder}) as running:
        running.wait_ready()
        yield running


def test_clients_made_of_mlserver(server: RunningServer) -> None:
    ended = subprocess.run(
        [sys.executable, str(CLIENT), server.inference, target(server), "twice"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "all is well" in ended.stdout


REQUESTS: list[dict[str, Any]] = [
    {"id": "1", "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, None]}]},
    {"id": "2", "inputs": [{"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2]}]},
    {
        "id": "3",
        "parameters": {"content_type": "pd"},
        "inputs": [
            {"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]},
            {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["x", "y"], "parameters": {"content_type": "str"}},
        ],
    },
    {"id": "4", "parameters": {"fail": 418}, "inputs": []},
    {"id": "5", "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}] * 2},
]


@pytest.fixture(scope="module")
def mlserver_address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_mlserver(folder, tmp_path_factory.mktemp("mlserver")) as address:
        yield address


@pytest.mark.parametrize("request_", REQUESTS)
def test_the_same_folder_answers_the_same(
    request_: dict[str, Any], server: RunningServer, mlserver_address: str
) -> None:
    expected = requests.post(f"{mlserver_address}/v2/models/twice/infer", json=request_, timeout=DEADLINE)
    answer = requests.post(f"{server.inference}/v2/models/twice/infer", json=request_, timeout=DEADLINE)
    assert answer.status_code == expected.status_code
    assert answer.json() == expected.json()
    cloud_events = {name.lower() for name in expected.headers if name.lower().startswith("ce-")}
    assert cloud_events <= {name.lower() for name in answer.headers} or answer.status_code != 200


def test_metrics_that_a_model_logs_arrive(server: RunningServer) -> None:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    requests.post(f"{server.inference}/v2/models/twice/infer", json=body, timeout=DEADLINE)
    assert server.metric("predictions_count", model_name="twice", model_version="v1") >= 1


def test_mlserver_infer(server: RunningServer, tmp_path: Path) -> None:
    given_path, taken_path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [n, n]}]} for n in range(4)]
    given_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for options in ([], ["--binary-data", "--batch-size", "2"]):
        address = server.inference.removeprefix("http://")
        command = [str(MLSERVER), "infer", "-u", address, "-m", "twice"]
        ended = subprocess.run(
            [*command, "-i", str(given_path), "-o", str(taken_path), *options],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        answers = [json.loads(line) for line in taken_path.read_text().splitlines()]
        by_index = {answer["parameters"]["batch_index"]: answer["outputs"][0]["data"] for answer in answers}
        assert by_index == {number: [2.0 * number, 2.0 * number] for number in range(4)}, ended.stderr
