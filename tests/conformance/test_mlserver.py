"""MLServer itself against ours: codecs side by side, its own clients, one folder run by it and by us.

It is installed into an environment of its own (see `real_mlserver`), where a comparing process imports both packages,
and whose interpreter runs workers that have the real `mlserver.MLModel`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tests.conformance import real_mlserver
from tests.conformance.grpc_client import target
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, free_ports

pytestmark = pytest.mark.timeout(600)

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
RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    real_mlserver.install()


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
def compare() -> Iterator[real_mlserver.Comparison]:
    with real_mlserver.Comparison() as comparison:
        yield comparison


@RELAXED
@given(st.lists(st.text()), st.booleans())
def test_text(compare: Any, value: list[str], request_level: bool) -> None:
    real, ours = compare("str", value, request=request_level)
    assert ours == real


@RELAXED
@given(st.lists(st.binary()))
def test_bytes(compare: Any, value: list[bytes]) -> None:
    real, ours = compare("base64", [each.decode("latin-1") for each in value])
    assert ours == real


@RELAXED
@given(st.lists(st.datetimes(timezones=st.none() | st.timezones())))
def test_points_in_time(compare: Any, value: list[Any]) -> None:
    try:
        texts = [each.isoformat() for each in value]
    except ValueError:  # an offset that is off by fractions of a second
        return
    real, ours = compare("datetime", texts)
    assert ours == real


NUMBERS = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]


@RELAXED
@given(
    st_numpy.arrays(
        st.sampled_from(NUMBERS), st_numpy.array_shapes(max_dims=3, max_side=3), elements={"allow_infinity": False}
    ),
    st.booleans(),
)
def test_arrays(compare: Any, array: Any, request_level: bool) -> None:
    more = {"dtype": str(array.dtype), "shape": array.shape, "request": request_level}
    real, ours = compare("np", array.ravel().tolist(), **more)
    assert ours == real


@RELAXED
@given(st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1), st.booleans())
def test_arrays_of_text(compare: Any, texts: list[str], request_level: bool) -> None:
    real, ours = compare("np", texts, dtype="U", shape=[len(texts)], request=request_level)
    assert ours == real


COLUMNS = {
    "float64": st.floats(allow_infinity=False),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "object": st.text() | st.lists(st.integers(), max_size=2),
}


@RELAXED
@given(st.data(), st.integers(1, 4), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
def test_data_frames(compare: Any, data: Any, rows: int, dtypes: list[str]) -> None:
    value = {
        f"column{number}": data.draw(st.lists(COLUMNS[dtype], min_size=rows, max_size=rows))
        for number, dtype in enumerate(dtypes)
    }
    real, ours = compare("pd", value, dtypes=dict(zip(value, dtypes, strict=True)))
    assert ours == real


CONTENT_TYPES = st.sampled_from(["str", "base64", "np", "datetime", "pd_json", "unknown", None])


@RELAXED
@given(
    st.lists(st.tuples(st.sampled_from(["described", "other"]), CONTENT_TYPES), min_size=1, max_size=2, unique=True),
    st.sampled_from(["str", "np", "pd", "unknown", None]),
    st.sampled_from([["aGk="], ["2024-05-01"], ["[1]"], ["plain"]]),
)
def test_which_codec_is_taken(compare: Any, inputs: Any, request_type: str | None, data: list[str]) -> None:
    given_inputs = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": data, "parameters": {"content_type": content_type}}
        for name, content_type in inputs
    ]
    real, ours = compare("json", {"inputs": given_inputs, "parameters": {"content_type": request_type}})
    assert ours == real


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    path = os.pathsep.join([str(real_mlserver.PYTHON.parent), os.environ["PATH"]])
    with RunningServer({"twice": folder}, environment={"PATH": path}) as running:
        running.wait_ready()
        # The same folder once more, in a worker that has the real MLServer.
        response = running.register(folder, model_name="real", runtime="python3", synchronous="true")
        assert response.status_code == 200, response.text
        yield running


def test_workers_have_the_real_one_where_it_is_installed(server: RunningServer) -> None:
    sources = [line.partition("class from ")[2] for line in server.log().splitlines() if "class from" in line]
    assert len(sources) == 2
    assert sources[0].endswith("backend/ts/mlserver/model.py")
    assert sources[1].endswith("site-packages/mlserver/model.py")


@pytest.mark.parametrize("model", ["twice", "real"])
def test_clients_made_of_mlserver(model: str, server: RunningServer) -> None:
    if model == "real":
        pytest.importorskip("grpc")
    assert "all is well" in real_mlserver.run("client.py", server.inference, target(server), model)


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
    """MLServer serves the folder; in its own process, as its parallel workers do not start with current uvloop."""
    rest, grpc_port, metrics = free_ports(3)
    environment = {
        **os.environ,
        "MLSERVER_PARALLEL_WORKERS": "0",
        "MLSERVER_HOST": "127.0.0.1",
        "MLSERVER_HTTP_PORT": str(rest),
        "MLSERVER_GRPC_PORT": str(grpc_port),
        "MLSERVER_METRICS_PORT": str(metrics),
    }
    output = tmp_path_factory.mktemp("mlserver") / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [str(real_mlserver.ENVIRONMENT / "bin" / "mlserver"), "start", str(folder)],
            env=environment,
            cwd=output.parent,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{rest}"

    def is_ready() -> bool:
        assert process.poll() is None, output.read_text()
        try:
            return requests.get(f"{address}/v2/models/twice/ready", timeout=DEADLINE).status_code == 200
        except requests.ConnectionError:
            return False

    try:
        eventually(is_ready, "MLServer is ready")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("model", ["twice", "real"])
def test_the_same_folder_answers_the_same(
    request_: dict[str, Any], model: str, server: RunningServer, mlserver_address: str
) -> None:
    expected = requests.post(f"{mlserver_address}/v2/models/twice/infer", json=request_, timeout=DEADLINE)
    answer = requests.post(f"{server.inference}/v2/models/{model}/infer", json=request_, timeout=DEADLINE)
    assert answer.status_code == expected.status_code
    said = answer.json()
    if "model_name" in said:
        said["model_name"] = "twice"
    assert said == expected.json()
    cloud_events = {name.lower() for name in expected.headers if name.lower().startswith("ce-")}
    assert cloud_events <= {name.lower() for name in answer.headers} or answer.status_code != 200


def test_metrics_of_the_real_log_arrive(server: RunningServer) -> None:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    for model in ("twice", "real"):
        requests.post(f"{server.inference}/v2/models/{model}/infer", json=body, timeout=DEADLINE)
        assert server.metric("predictions_count", model_name=model, model_version="v1") >= 1


def test_mlserver_infer(server: RunningServer, tmp_path: Path) -> None:
    given_path, taken_path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [n, n]}]} for n in range(4)]
    given_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for options in ([], ["--binary-data", "--batch-size", "2"]):
        address = server.inference.removeprefix("http://")
        command = [str(real_mlserver.ENVIRONMENT / "bin" / "mlserver"), "infer", "-u", address, "-m", "twice"]
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


def test_the_real_codecs_take_and_give_data_that_nobody_has_read() -> None:
    assert real_mlserver.run("unread_data.py").split() == [
        "FP16", "FP32", "FP64", "INT8", "INT64", "UINT16", "UINT64", "BOOL", "BYTES",
    ]  # fmt: skip
