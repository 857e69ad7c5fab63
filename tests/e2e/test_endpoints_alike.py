"""One model and one kind of request through every endpoint: the type of numbers, the batch dimension, malformed data,
and
results that JSON has no form for."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc as grpclib
import pytest
import requests
from backports import zstd
from tests.conformance.grpc_client import Client, target
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

from ts.apis.open_inference.protos.infer_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

BASE = "from ts.torch_handler.base_handler import BaseHandler\n\n\nclass Doubler(BaseHandler):\n    pass\n"
SERVED = """
import torch
from ts import serve

module = torch.nn.Linear(3, 3, bias=False)
with torch.no_grad():
    module.weight.copy_(torch.eye(3) * 2)
serve(module)
"""
ODD_VALUES = '{"number": np.float32(1.5), "nothing": float("nan"), "row": np.array([1, 2])}'
ODD = {
    "torchserve": f"""
import numpy as np


def handle(data, context):
    return [{ODD_VALUES} for _ in data or []]
""",
    "function": f"""
import numpy as np
from ts import serve


@serve
def function(text: str) -> dict:
    return {ODD_VALUES}
""",
    "truss": f"""
import numpy as np


class Model:
    def predict(self, inputs):
        return {ODD_VALUES}
""",
}
ODD["script"] = f"""
import json

import numpy as np


def model_fn(model_dir):
    return None


def input_fn(body, content_type):
    return json.loads(body)


def predict_fn(data, model):
    return {ODD_VALUES}


def output_fn(prediction, accept):
    return prediction
"""
#: How clients pack a body; a mark of the byte order stands before the text that some write.
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda body: body,
    "mark": lambda body: b"\xef\xbb\xbf" + body,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}
#: What JSON has of these values, whoever writes it.
WRITTEN = {"number": 1.5, "nothing": None, "row": [1, 2]}
ROWS, DOUBLED = [[1, 2, 3], [4, 5, 6]], [2, 4, 6, 8, 10, 12]


#: An endpoint: it sends rows to a model, of a datatype if the endpoint knows any, and returns the answer's numbers.
Send = Callable[[RunningServer, str, Any, str], list[float]]


class Refused(Exception):
    """What the client is told instead of an answer."""

    def __init__(self, status: Any, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.is_clients = status in (400, 422, grpclib.StatusCode.INVALID_ARGUMENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {"linear": linear(folder)}
    models["served"] = model_folder(folder, "served", SERVED, "deviceType: cpu\n")
    for name in ("torchserve", "function"):
        models[name] = model_folder(folder, name, ODD[name])
    models["truss"] = folder / "truss"
    (models["truss"] / "model").mkdir(parents=True)
    (models["truss"] / "config.yaml").write_text("model_name: any\n")
    (models["truss"] / "model" / "model.py").write_text(ODD["truss"])
    models["script"] = folder / "script"
    (models["script"] / "code").mkdir(parents=True)
    (models["script"] / "code" / "inference.py").write_text(ODD["script"])
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def of_kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose handlers get the rows of KServe's ``instances``, as TorchServe's do there."""
    models = {"linear": linear(tmp_path_factory.mktemp("kserve"))}
    with RunningServer(models, {"drain_timeout": 1, "service_envelope": "kserve"}) as running:
        running.wait_ready()
        yield running


def linear(folder: Path) -> Path:
    """Write a model of a handler that doubles three numbers."""
    written = model_folder(folder, "linear", BASE, "deviceType: cpu\nbatchSize: 4\nmaxBatchDelay: 20\n")
    module = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(3) * 2)
    torch.jit.script(module).save(str(written / "model.pt"))
    return written


def datatype_of(model: str, sent: str) -> str:
    """Functions tell the type of their weights; lists of handlers have that of what was sent, if these are floats."""
    return "FP32" if model == "served" or sent == "FP32" else "FP64"


def post(server: RunningServer, path: str, body: Any, **headers: str) -> Any:
    answer = requests.post(f"{server.inference}{path}", json=body, headers=headers, timeout=DEADLINE)
    if answer.status_code != 200:
        raise Refused(answer.status_code, answer.text)
    return answer.json()


def predictions(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    return [number for row in rows for number in post(server, f"/predictions/{model}", row)]


def predict_v1(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    return [
        each for row in post(server, f"/v1/models/{model}:predict", {"instances": rows})["predictions"] for each in row
    ]


def own_path(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    return [number for row in post(server, f"/{model}", rows) for number in row]


def infer(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    tensor = {"name": "input", "datatype": datatype, "shape": [len(rows), len(rows[0])], "data": rows}
    (output,) = post(server, f"/v2/models/{model}/infer", {"inputs": [tensor]})["outputs"]
    assert (output["shape"], output["datatype"]) == ([len(rows), 3], datatype_of(model, datatype)), output
    return list(output["data"])


def grpc_predictions(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    try:
        with Client(server) as client:
            return [each for row in rows for each in json.loads(client.predict(model, data=json.dumps(row).encode()))]
    except grpclib.RpcError as error:
        raise Refused(error.code(), error.details()) from None


def grpc_infer(server: RunningServer, model: str, rows: Any, datatype: str) -> list[float]:
    numbers = [number for row in rows for number in row]
    member = {"INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"}
    sent = ModelInferRequest.InferInputTensor(
        name="input",
        datatype=datatype,
        shape=[len(rows), len(rows[0])],
        contents=InferTensorContents(**{member[datatype]: numbers}),
    )
    with grpclib.insecure_channel(target(server)) as channel:
        try:
            method = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                ModelInferRequest.SerializeToString,
                ModelInferResponse.FromString,
            )
            answer = method(ModelInferRequest(model_name=model, inputs=[sent]), timeout=DEADLINE)
        except grpclib.RpcError as error:
            raise Refused(error.code(), error.details()) from None
    (output,) = answer.outputs
    assert (list(output.shape), output.datatype) == ([len(rows), 3], datatype_of(model, datatype)), output
    return [*output.contents.fp32_contents, *output.contents.fp64_contents]


OF_HANDLERS: dict[str, tuple[Send, str]] = {
    "predictions": (predictions, "linear"),
    "v1": (predict_v1, "linear"),
    "v2": (infer, "linear"),
    "gRPC Predictions": (grpc_predictions, "linear"),
    "gRPC ModelInfer": (grpc_infer, "linear"),
}
OF_SERVED: dict[str, tuple[Send, str]] = {"own path": (own_path, "served"), "v2 of serve": (infer, "served")}
EVERY = {**OF_HANDLERS, **OF_SERVED}
every_endpoint = pytest.mark.parametrize("endpoint", EVERY)
#: Data of no tensor of three columns: a row too short, a text, an object, none, and rows of several lengths.
BAD_ROWS = {
    "short": [[1, 2]],
    "text": [["a", "b", "c"]],
    "object": [[{"a": 1}, 2, 3]],
    "null": [[None, "x", 3]],
    "uneven": [[1, 2, 3], [4]],
}


@every_endpoint
@pytest.mark.parametrize("datatype", ["INT32", "INT64", "FP32", "FP64"])
def test_the_weights_decide_the_type_of_numbers(
    server: RunningServer, of_kserve: RunningServer, endpoint: str, datatype: str
) -> None:
    send, model = EVERY[endpoint]
    server = of_kserve if send is predict_v1 else server
    rows = ROWS if datatype.startswith("INT") else [[float(each) for each in row] for row in ROWS]
    assert send(server, model, rows, datatype) == DOUBLED


@every_endpoint
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_malformed_data_are_the_clients_mistake(
    server: RunningServer, of_kserve: RunningServer, endpoint: str, bad: str
) -> None:
    send, model = EVERY[endpoint]
    server = of_kserve if send is predict_v1 else server
    if send is grpc_infer and bad != "short":
        pytest.skip("the messages of gRPC have no form for it")
    with pytest.raises(Refused) as refused:
        send(server, model, BAD_ROWS[bad], "FP32")
    assert refused.value.is_clients, refused.value
    assert send(server, model, ROWS, "FP32") == DOUBLED


def test_no_malformed_data_were_counted_as_failures_of_the_model(
    server: RunningServer, of_kserve: RunningServer
) -> None:
    text = "".join(requests.get(f"{each.metrics}/metrics", timeout=DEADLINE).text for each in (server, of_kserve))
    failed = [line for line in text.splitlines() if "handler_error" in line and not line.endswith(" 0.0")]
    assert failed == []


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/predictions/torchserve", "x", "torchserve"),
        ("/torchserve", "x", "torchserve"),
        ("/predictions/function", {"text": "x"}, "function"),
        ("/function", {"text": "x"}, "function"),
        ("/v1/models/truss:predict", {"text": "x"}, "truss"),
        ("/predictions/truss", {"text": "x"}, "truss"),
        ("/predictions/script", {"text": "x"}, "script"),
        ("/models/script/invoke", {"text": "x"}, "script"),
    ],
)
def test_results_that_json_has_no_form_for_are_written_alike(
    server: RunningServer, path: str, body: Any, model: str
) -> None:
    assert post(server, path, body) == WRITTEN


@pytest.mark.parametrize("encoding", ["plain", "mark", "gzip", "deflate", "zstd"])
@pytest.mark.parametrize(
    "path",
    [
        *("/predictions/function", "/function", "/models/function/invoke", "/invocations?model_name=function"),
        *("/predictions/truss", "/v1/models/truss:predict", "/invocations?model_name=truss"),
        *("/predictions/script", "/models/script/invoke", "/v1/models/script:predict"),
        "/v1/models/torchserve:predict",
    ],
)
def test_bodies_are_read_alike(server: RunningServer, path: str, encoding: str) -> None:
    body = PACKED[encoding](b'{"text": "x"}')
    headers = {"Content-Type": "application/json"}
    if encoding in ("gzip", "deflate", "zstd"):
        headers["Content-Encoding"] = encoding
    answer = requests.post(f"{server.inference}{path}", body, headers=headers, timeout=DEADLINE)
    assert (answer.status_code, answer.json()) == (200, WRITTEN)
    headers["Content-Encoding"] = "br"
    assert requests.post(f"{server.inference}{path}", body, headers=headers, timeout=DEADLINE).status_code == 415


@pytest.mark.parametrize("model", ["torchserve", "function"])
def test_they_are_over_grpc_as_well(server: RunningServer, model: str) -> None:
    with Client(server) as client:
        assert json.loads(client.predict(model, text=b"x")) == WRITTEN
