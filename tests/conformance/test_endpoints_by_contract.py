"""Which endpoint serves which kind of model code: the table of docs/open-inference.md is what a server answers.

Every model makes capitals of a text. A cell is `yes`, or the status of the refusal.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import requests
from tests.conformance.grpc_client import target
from tests.conformance.test_contract_matrix import MLSERVER, SHOUT, truss
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, model_folder

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from ts.apis.open_inference.protos.infer_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse

FUNCTION = """
from ts import serve


@serve
def function(text: str) -> str:
    return text.upper()
"""
TRUSS = """
class Model:
    def predict(self, inputs):
        text = inputs.get("text") or inputs["text_input"]
        text = text[0] if isinstance(text, list) else text
        return {"said": (text.decode() if isinstance(text, bytes) else text).upper()}
"""
SCRIPT = """
def model_fn(folder):
    return str.upper


def input_fn(body, content_type):
    return bytes(body).decode()


def output_fn(text, accept):
    return text, "text/plain"


def predict_fn(text, model):
    return model(text)
"""
TEXT = "one two three"
INPUTS = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
#: The models, in the order of the table's columns, and the body that each takes where an endpoint passes bodies on.
BODIES: dict[str, tuple[bytes, str]] = {
    "function": (TEXT.encode(), "text/plain"),
    "handler": (TEXT.encode(), "text/plain"),
    "ml": (json.dumps(INPUTS).encode(), "application/json"),
    "truss": (json.dumps({"text": [TEXT]}).encode(), "application/json"),
    "script": (TEXT.encode(), "text/plain"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    for name, file, text in (
        ("ml", "shout.py", MLSERVER),
        ("ml", "model-settings.json", json.dumps({"name": "ml", "implementation": "shout.Shout"})),
        ("script", "code/inference.py", SCRIPT),
        ("function", "handler.py", FUNCTION),
    ):
        (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_text(text)
    models = {name: folder / name for name in ("function", "ml", "script")}
    models |= {"handler": model_folder(folder, "handler", SHOUT), "truss": truss(folder, "truss", TRUSS)}
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def passed_on(path: str) -> Callable[[RunningServer, str], str]:
    """Return a call of an endpoint that passes the body on to the model."""

    def call(server: RunningServer, model: str) -> str:
        body, kind = BODIES[model]
        return answer(server, path.format(model), body, kind)

    return call


def posted(path: str, content: Any) -> Callable[[RunningServer, str], str]:
    """Return a call of an endpoint whose bodies have the same form for every model."""
    return lambda server, model: answer(server, path.format(model), json.dumps(content).encode(), "application/json")


def answer(server: RunningServer, path: str, body: bytes, kind: str) -> str:
    response = requests.post(f"{server.inference}{path}", body, headers={"Content-Type": kind}, timeout=DEADLINE)
    if response.status_code != 200:
        return str(response.status_code)
    assert TEXT.upper() in response.text
    return "yes"


def torchserve_grpc(server: RunningServer, model: str) -> str:
    body, _ = BODIES[model]
    entries = {"text": TEXT.encode()} if model == "truss" else {"body": body}  # a Truss gets the entries as its inputs
    request = PredictionsRequest(model_name=model, input=entries)
    with grpc.insecure_channel(target(server)) as channel:
        return status_of(lambda: InferenceAPIsServiceStub(channel).Predictions(request, timeout=DEADLINE).prediction)


def open_inference_grpc(server: RunningServer, model: str) -> str:
    contents = InferTensorContents(bytes_contents=[TEXT.encode()])
    tensor = ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1], contents=contents)
    request = ModelInferRequest(model_name=model, inputs=[tensor])
    with grpc.insecure_channel(target(server)) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        return status_of(lambda: infer(request, timeout=DEADLINE).SerializeToString())


def status_of(call: Callable[[], bytes]) -> str:
    try:
        assert TEXT.upper().encode() in call()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "yes"


ENDPOINTS: dict[str, Callable[[RunningServer, str], str]] = {
    "`/predictions/{model}`, `/{model}`": passed_on("/predictions/{}"),
    "`/v1/models/{model}:predict` (KServe v1)": passed_on("/v1/models/{}:predict"),
    "`/invocations`, `/models/{model}/invoke` (SageMaker)": passed_on("/models/{}/invoke"),
    "`/v2/models/{model}/infer`": posted("/v2/models/{}/infer", INPUTS),
    "`/v2/models/{model}/generate` with a text": posted("/v2/models/{}/generate", {"text_input": TEXT}),
    "gRPC `Predictions` (TorchServe)": torchserve_grpc,
    "gRPC `ModelInfer` (Open Inference)": open_inference_grpc,
}


def test_the_table_of_the_documentation_is_what_the_server_answers(server: RunningServer) -> None:
    found = {endpoint: [call(server, model) for model in BODIES] for endpoint, call in ENDPOINTS.items()}
    measured = [f"| {endpoint} | {' | '.join(cells)} |" for endpoint, cells in found.items()]
    section = (ROOT / "docs" / "open-inference.md").read_text().partition("## Contracts and protocols\n")[2]
    table = re.findall(r"^\|.*$", section, re.MULTILINE)[2 : 2 + len(measured)]
    assert table == measured, "\n".join(["the table must be", *measured])
