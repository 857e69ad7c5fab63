"""Each contract over each protocol: the table of docs/open-inference.md, cell by cell.

Every model makes capitals of a text; those that stream give its words one by one.
"""

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc as grpclib
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from httpx_sse import connect_sse
from tests.conformance.grpc_client import target
from tests.conformance.triton_tensors import tensor
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

from ts.apis.open_inference.protos.infer_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse

SHOUT = """
def handle(data, context):
    if data is None:
        return None
    texts = [row["body"] for row in data]
    return [(text.decode() if isinstance(text, (bytes, bytearray)) else text).upper() for text in texts]
"""
WORDS = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    (row,) = data
    text = row["body"]
    *first, last = (text.decode() if isinstance(text, (bytes, bytearray)) else text).upper().split()
    for word in first:
        send_intermediate_predict_response([word], context.request_ids, "ok", 200, context)
    return [last]
"""
SUM = """
class Sum:
    def initialize(self, context):
        self.sums = {}

    def handle(self, data, context):
        return [self.add(context.get_sequence_id(index), row["x"]) for index, row in enumerate(data)]

    def add(self, sequence, value):
        self.sums[sequence] = self.sums.get(sequence, 0) + value
        return self.sums[sequence]
"""
MLSERVER = """
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.handlers import custom_handler
from mlserver.types import InferenceResponse


class Shout(MLModel):
    async def load(self):
        return True

    @custom_handler(rest_path="/shout/{text}", rest_method="GET")
    async def shout(self, text: str) -> str:
        return text.upper()

    async def predict(self, payload):
        if getattr(payload.parameters, "sequence_id", None) is not None:
            return self._said(f"{payload.parameters.sequence_id} {payload.parameters.sequence_start}")
        (text,) = StringCodec.decode_input(payload.inputs[0])
        return self._said(text.upper())

    async def predict_stream(self, payloads):
        async for payload in payloads:
            (text,) = StringCodec.decode_input(payload.inputs[0])
            for word in text.upper().split():
                yield self._said(word)

    def _said(self, text):
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("said", [text])])
"""
TRUSS_SHOUT = """
class Model:
    def predict(self, inputs):
        return {"said": (inputs.get("text") or inputs["text_input"])[0].upper()}
"""
TRUSS_INPUTS = """
class Model:
    def predict(self, inputs):
        return {"said": f"{inputs['sequence_id']} {inputs['sequence_start']}"}
"""
TRUSS_WORDS = """
class Model:
    def predict(self, inputs):
        yield from (inputs.get("text") or inputs["text_input"])[0].upper().split()
"""
TEXT = "one two three"
LOUD, WORD_BY_WORD = "ONE TWO THREE", ["ONE", "TWO", "THREE"]
CONTRACTS = {"torchserve": ("shout", "words"), "mlserver": ("ml", "ml"), "truss": ("truss-shout", "truss-words")}


def truss(folder: Path, name: str, code: str) -> Path:
    model = folder / name
    (model / "model").mkdir(parents=True)
    (model / "config.yaml").write_text("model_name: any\n")
    (model / "model" / "model.py").write_text(code)
    return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    ml = folder / "ml"
    ml.mkdir()
    (ml / "shout.py").write_text(MLSERVER)
    (ml / "model-settings.json").write_text(json.dumps({"name": "ml", "implementation": "shout.Shout"}))
    models = {
        "shout": model_folder(folder, "shout", SHOUT),
        "words": model_folder(folder, "words", WORDS),
        "sum": model_folder(folder, "sum", SUM, "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\n"),
        "ml": ml,
        "truss-shout": truss(folder, "truss-shout", TRUSS_SHOUT),
        "truss-words": truss(folder, "truss-words", TRUSS_WORDS),
        "truss-inputs": truss(folder, "truss-inputs", TRUSS_INPUTS),
    }
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.inference, timeout=DEADLINE) as client:
        yield client


@pytest.fixture(scope="module")
def grpc(server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(target(server)) as client:
        yield client


def body() -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}


def said(response: dict[str, Any]) -> str:
    [output] = response["outputs"]
    assert output["datatype"] == "BYTES"
    [text] = output["data"]
    return str(text)


contracts = pytest.mark.parametrize("contract", CONTRACTS)


@contracts
def test_predictions(http, contract):
    """TorchServe's handlers get the body as it is, MLServer models an inference request, Trusses their inputs."""
    requests = {"torchserve": {"content": TEXT}, "mlserver": {"json": body()}, "truss": {"json": {"text": [TEXT]}}}
    answer = http.post(f"/predictions/{CONTRACTS[contract][0]}", **requests[contract])
    assert answer.status_code == 200, answer.text
    if contract == "torchserve":
        assert answer.text == LOUD
    else:
        assert (said(answer.json()) if contract == "mlserver" else answer.json()["said"]) == LOUD


@contracts
@pytest.mark.parametrize("endpoint", ["infer", "generate"])
def test_infer(http, contract, endpoint):
    model = CONTRACTS[contract][0]
    answer = http.post(f"/v2/models/{model}/{endpoint}", json={**body(), "id": "7"})
    assert answer.status_code == 200, answer.text
    assert (said(answer.json()), answer.json()["model_name"], answer.json()["id"]) == (LOUD, model, "7")


@contracts
@pytest.mark.parametrize("endpoint", ["infer_stream", "generate_stream"])
def test_infer_stream(http, contract, endpoint):
    model = CONTRACTS[contract][1]
    with connect_sse(http, "POST", f"/v2/models/{model}/{endpoint}", json=body()) as source:
        assert [said(json.loads(event.data)) for event in source.iter_sse()] == WORD_BY_WORD


def test_a_streaming_handler_has_several_responses_to_infer(http):
    answer = http.post("/v2/models/words/infer", json=body())
    assert (answer.status_code, "error" in answer.json()) == (501, True), answer.text


def test_a_streaming_truss_has_its_chunks_joined_by_infer(http):
    assert said(http.post("/v2/models/truss-words/infer", json=body()).json()) == "".join(WORD_BY_WORD)


@contracts
def test_text_generation(http, contract):
    answer = http.post(f"/v2/models/{CONTRACTS[contract][0]}/generate", json={"text_input": TEXT})
    assert answer.json()["text_output"] == LOUD, answer.text
    with connect_sse(
        http, "POST", f"/v2/models/{CONTRACTS[contract][1]}/generate_stream", json={"text_input": TEXT}
    ) as source:
        assert [json.loads(event.data)["text_output"] for event in source.iter_sse()] == WORD_BY_WORD


@contracts
def test_model_infer(grpc, contract):
    result = grpc.infer(CONTRACTS[contract][0], [tensor("text", np.array([TEXT.encode()], dtype=object))])
    [output] = result.get_response().outputs
    assert result.as_numpy(output.name).ravel().tolist() == [LOUD.encode()]


@contracts
def test_model_stream_infer(server, contract):
    results: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(target(server)) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        text = tensor("text", np.array([TEXT.encode()], dtype=object))
        client.async_stream_infer(CONTRACTS[contract][1], [text], enable_empty_final_response=True)
        words, final = [], False
        while not final:
            result, error = results.get(timeout=DEADLINE)
            assert error is None, error
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            words += [result.as_numpy(output.name).ravel()[0].decode() for output in response.outputs]
        client.stop_stream()
    assert words == WORD_BY_WORD


def test_a_stream_of_requests_is_one_call_of_an_mlserver_model(server):
    def requests() -> Iterator[ModelInferRequest]:
        for text in ("one two", "three"):
            contents = InferTensorContents(bytes_contents=[text.encode()])
            tensor = ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1], contents=contents)
            yield ModelInferRequest(model_name="ml", id=text, inputs=[tensor])

    with grpclib.insecure_channel(target(server)) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )(requests(), timeout=DEADLINE)
        answers = [(answer.id, answer.outputs[0].contents.bytes_contents[0].decode()) for answer in call]
    assert answers == [("one two", word) for word in WORD_BY_WORD]  # ids of one call are that of its first request


def test_an_mlserver_model_with_both_methods_predicts_when_infer_asks(http):
    assert said(http.post("/v2/models/ml/infer", json=body()).json()) == LOUD


def test_sequences_of_a_torchserve_handler(http, grpc):
    """Both protocols lead to the same sequence."""
    first = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [5]}]}
    first["parameters"] = {"sequence_id": 7, "sequence_start": True}
    answer = http.post("/v2/models/sum/infer", json=first)
    assert answer.json()["outputs"][0]["data"] == [5], answer.text
    number = tensor("x", np.array([6]))
    result = grpc.infer("sum", [number], sequence_id=7, sequence_end=True)
    assert result.as_numpy(result.get_response().outputs[0].name).tolist() == [11]
    refused = http.post("/v2/models/sum/infer", json={**first, "parameters": {"sequence_id": 7}})
    assert (refused.status_code, "sequence_start" in refused.json()["error"]) == (400, True), refused.text


@pytest.mark.parametrize(("model", "endpoint"), [("ml", "infer"), ("ml", "generate"), ("truss-inputs", "generate")])
def test_other_contracts_see_what_is_said_of_sequences(http, model, endpoint):
    request = {**body(), "parameters": {"sequence_id": "a", "sequence_start": True}}
    assert said(http.post(f"/v2/models/{model}/{endpoint}", json=request).json()) == "a True"


def test_routes_of_their_own(http):
    assert http.get("/shout/one").json() == "ONE"
    answer = http.post("/v1/models/truss-shout:predict", json={"text": [TEXT]})
    assert answer.json() == {"said": LOUD}
    assert http.get("/shout/one/more").status_code == 404


@contracts
def test_metadata_over_both_protocols(http, grpc, contract):
    for model in CONTRACTS[contract]:
        assert http.get(f"/v2/models/{model}/ready").status_code == 200
        described = http.get(f"/v2/models/{model}").json()
        same = grpc.get_model_metadata(model, as_json=True)
        assert (described["name"], described["versions"], described["platform"]) == (
            same["name"],
            same["versions"],
            same["platform"],
        )
        assert http.get(f"/v2/models/{model}/config").json()["backend"] == contract
