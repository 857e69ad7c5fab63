"""What a client gets of MLServer's answers that are no plain response: errors, details, parameters, encodings."""

import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tests.conformance.real_mlserver import MLSERVER, real_mlserver
from tests.e2e.running_server import DEADLINE, RunningServer

MODEL = """
from fastapi import Body, HTTPException, Request
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec, StringCodec
from mlserver.errors import MLServerError
from mlserver.handlers import custom_handler
from mlserver.types import InferenceResponse
from starlette.exceptions import HTTPException as StarletteException
import numpy as np

RAISES = {
    "fastapi": HTTPException(418, "tea"),
    "starlette": StarletteException(418, "tea"),
    "detail": HTTPException(429, {"seconds": [1, 2]}, headers={"Retry-After": "7", "X-Mine": "a"}),
    "phrase": HTTPException(404),
    "empty": HTTPException(204),
    "own": MLServerError("mine", 409),
}


class Kinds(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        kind = getattr(payload.parameters, "kind", None)
        if kind:
            raise RAISES[kind]
        outputs = [
            StringCodec.encode_output("text", ["a"]),
            Base64Codec.encode_output("coded", [b"\\xff\\x00"]),
            NumpyCodec.encode_output("number", np.array([[1.5]])),
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)

    @custom_handler(rest_path="/mine")
    async def mine(self, payload: dict = Body(...)):
        return payload

    @custom_handler(rest_path="/size")
    async def size(self, request: Request):
        return {"size": len(await request.body()), "encoding": request.headers.get("content-encoding")}
"""
INPUT = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
INFER = "/v2/models/kinds/infer"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "kinds"
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    values: dict[str, Any] = {"name": "kinds", "implementation": "model.Kinds", "versions": ["trained with 1.2"]}
    values["parameters"] = {"version": "v7"}
    (folder / "model-settings.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[str]:
    with RunningServer({"kinds": folder}) as running:
        running.wait_ready()
        yield running.inference


@pytest.fixture(scope="module")
def mlservers(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_mlserver(folder, tmp_path_factory.mktemp("mlserver")) as address:
        yield address


def post(address: str, path: str, body: Any, **headers: str) -> requests.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(address + path, data=data, headers={**JSON, **headers}, timeout=DEADLINE)


@pytest.mark.parametrize("kind", ["fastapi", "starlette", "detail", "phrase", "empty", "own"])
def test_what_a_model_raises(kind: str, ours: str, mlservers: str) -> None:
    request = {"id": "1", "inputs": [INPUT], "parameters": {"kind": kind}}
    expected, answer = (post(address, INFER, request) for address in (mlservers, ours))
    assert answer.status_code == expected.status_code
    assert bool(answer.content) == bool(expected.content)
    if expected.content:
        assert answer.json().items() >= expected.json().items()
        assert answer.json()["error"]
    for name in ("retry-after", "x-mine"):
        assert answer.headers.get(name) == expected.headers.get(name)


BAD_REQUESTS = {
    "empty": b"",
    "no JSON": b"nope",
    "cut short": b'{"inputs":[',
    "no UTF-8": b"\xff",
    "null": b"null",
    "a list": [],
    "no inputs": {},
    "inputs are null": {"inputs": None},
    "inputs are an object": {"inputs": {}},
    "an input is a text": {"inputs": ["a"]},
    "several problems": {
        "id": 5,
        "inputs": [{"name": 1, "shape": "x", "datatype": "FP31", "data": [1]}, {"name": "b"}],
    },
    "id": {"id": 1, "inputs": [INPUT]},
    "parameters": {"parameters": [], "inputs": [INPUT]},
    "parameters of an input": {"inputs": [{**INPUT, "parameters": "a"}]},
    "content type": {"inputs": [INPUT], "parameters": {"content_type": 1}},
    "outputs": {"inputs": [INPUT], "outputs": {}},
    "an output without a name": {"inputs": [INPUT], "outputs": [{}]},
    "datatype": {"inputs": [{**INPUT, "datatype": "BF16"}]},
    "a broken size": {"inputs": [{**INPUT, "shape": [1.5]}]},
    "no data": {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]},
}


@pytest.mark.parametrize("body", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
@pytest.mark.parametrize("endpoint", ["infer", "generate", "infer_stream"])
def test_malformed_requests(endpoint: str, body: Any, ours: str, mlservers: str) -> None:
    path = f"/v2/models/kinds/{endpoint}"
    expected, answer = (post(address, path, body) for address in (mlservers, ours))
    assert (answer.status_code, expected.status_code) == (422, 422)
    assert answer.json()["detail"] == expected.json()["detail"]
    assert answer.json()["error"]


@pytest.mark.parametrize("outputs", [None, [{"name": "none"}], [{"name": "text"}, {"name": "none"}]])
def test_outputs_that_there_are_not(outputs: Any, ours: str, mlservers: str) -> None:
    request = {"id": "1", "inputs": [INPUT], "outputs": outputs}
    expected, answer = (post(address, INFER, request) for address in (mlservers, ours))
    assert (answer.status_code, answer.json()) == (expected.status_code, expected.json())


@pytest.mark.parametrize("path", ["/mine", "/size"])
@pytest.mark.parametrize("encoding", ["gzip", "br"])
def test_compressed_bodies_of_custom_handlers(path: str, encoding: str, ours: str, mlservers: str) -> None:
    body = b'{"a": 1}'
    sent = gzip.compress(body) if encoding == "gzip" else body  # no other encoding is undone
    answers = [post(address, path, sent, **{"content-encoding": encoding}) for address in (mlservers, ours)]
    expected, answer = [(each.status_code, each.json()) for each in answers]
    assert answer == expected
    assert answer[0] == 200


def test_a_body_of_a_custom_handler_that_is_no_gzip_is_refused(ours: str) -> None:
    answer = post(ours, "/mine", b"nope", **{"content-encoding": "gzip"})
    assert answer.status_code == 400
    assert "gzip" in answer.json()["error"]


def test_versions_are_those_of_the_settings(ours: str, mlservers: str) -> None:
    for path in ("/v2/models/kinds", "/v2/models/kinds/versions/v7"):
        expected, answer = (requests.get(address + path, timeout=DEADLINE) for address in (mlservers, ours))
        assert answer.json()["versions"] == expected.json()["versions"] == ["trained with 1.2"]


@pytest.mark.parametrize("in_binary", [True, False])
@pytest.mark.parametrize("out_binary", [True, False])
def test_tritons_client_tells_base64_from_text(ours: str, *, in_binary: bool, out_binary: bool) -> None:
    sent = triton.InferInput("x", [1], "FP32")
    sent.set_data_from_numpy(np.ones(1, np.float32), binary_data=in_binary)
    wanted = [triton.InferRequestedOutput(name, binary_data=out_binary) for name in ("text", "coded", "number")]
    with triton.InferenceServerClient(ours.removeprefix("http://")) as client:
        answer = client.infer("kinds", [sent], outputs=wanted)
    types = {output["name"]: output["parameters"]["content_type"] for output in answer.get_response()["outputs"]}
    assert types == {"text": "str", "coded": "base64", "number": "np"}
    assert answer.as_numpy("coded").tolist() == [[b"/wA=" if out_binary else "/wA="]]


def test_mlserver_infer_tells_base64_from_text(ours: str, tmp_path: Path) -> None:
    given, taken = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text(json.dumps({"inputs": [INPUT]}) + "\n")
    for options in ([], ["--binary-data"]):
        command = [str(MLSERVER), "infer", "-u", ours.removeprefix("http://"), "-m", "kinds"]
        command += ["-i", str(given), "-o", str(taken), *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert ended.returncode == 0, ended.stderr
        (line,) = taken.read_text().splitlines()
        types = {output["name"]: output["parameters"].get("content_type") for output in json.loads(line)["outputs"]}
        assert types == {"text": "str", "coded": "base64", "number": "np"}, line
