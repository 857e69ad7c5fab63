"""Built-in handlers and Open Inference: the first dimension is the batch, and types and shapes are kept (REST, gRPC).

Numbers of another type than the model's are converted, whatever they came through.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.unit.ts.frontend_stub import FrontendStub, Worker, row

from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, InferRow

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

#: Sums a row's numbers, each of its 8 x 8 channels if it is an image.
LINEAR = """
import torch

class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 2, bias=False)
        torch.nn.init.ones_(self.linear.weight)

    def forward(self, x):
        return self.linear(x)
"""
CONVOLUTION = """
import torch

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 1, 8, bias=False)
        torch.nn.init.ones_(self.convolution.weight)

    def forward(self, images):
        return self.convolution(images)
"""
CHANNELS = """
import torch

class Channels(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
"""


class Answered(NamedTuple):
    datatype: str
    shape: list[int]
    data: list[Any]


@pytest.fixture
def serve(frontend: FrontendStub, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def load(code: str, handler: str = "base_handler", config: str = "") -> Worker:
        (tmp_path / f"{tmp_path.name}.py").write_text(code)
        (tmp_path / "model-config.yaml").write_text(config)
        model = {"modelName": "m", "modelFile": f"{tmp_path.name}.py", "configFile": "model-config.yaml"}
        workers.append(Worker(frontend, tmp_path, handler, manifest={"model": model}))
        return workers[-1]

    yield load
    for worker in workers:
        worker.connection.close()


def over_rest(datatype: str, array: Any) -> InferRow:
    tensor = {"name": "x", "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}
    return InferRow("a", [], "application/json", json.dumps({"inputs": [tensor]}).encode(), OPEN_INFERENCE_REST, False)


def over_grpc(datatype: str, array: Any) -> InferRow:
    message = ModelInferRequest(model_name="m", raw_input_contents=[array.tobytes()])
    message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    return InferRow("a", [], None, message.SerializeToString(), OPEN_INFERENCE_GRPC, False)


def read(wire_row: InferRow, body: bytes) -> Answered:
    if wire_row.protocol == OPEN_INFERENCE_REST:
        (output,) = json.loads(body)["outputs"]
        return Answered(output["datatype"], output["shape"], output["data"])
    message = ModelInferResponse.FromString(bytes(body))
    (output,) = message.outputs
    dtype = {"FP32": "<f4", "FP64": "<f8", "FP16": "<f2"}[output.datatype]
    return Answered(
        output.datatype, list(output.shape), np.frombuffer(message.raw_output_contents[0], dtype=dtype).tolist()
    )


def answer(worker: Worker, wire_row: InferRow) -> Answered:
    [[_, _, status, _, _, body, error]] = worker.infer(wire_row)
    assert status == 200, error
    return read(wire_row, body)


FORMS = pytest.mark.parametrize("form", [over_rest, over_grpc])


@FORMS
@pytest.mark.parametrize("count", [1, 3])
def test_the_first_dimension_is_the_batch(serve: Callable[..., Worker], form: Any, count: int) -> None:
    worker = serve(LINEAR)
    rows = np.arange(count * 5, dtype=np.float32).reshape(count, 5)
    sums = [float(value) for value in rows.sum(axis=1) for _ in range(2)]
    assert answer(worker, form("FP32", rows)) == ("FP32", [count, 2], sums)


@FORMS
def test_a_tensor_of_one_dimension_is_a_row(serve: Callable[..., Worker], form: Any) -> None:
    assert answer(serve(LINEAR), form("FP32", np.ones(5, np.float32))) == ("FP32", [2], [5.0, 5.0])


@FORMS
def test_images_come_as_clients_of_kserve_and_triton_send_them(serve: Callable[..., Worker], form: Any) -> None:
    images = np.ones((1, 3, 8, 8), np.float32)
    assert answer(serve(CONVOLUTION), form("FP32", images)) == ("FP32", [1, 1, 1, 1], [192.0])


@FORMS
def test_a_declared_shape_says_what_a_row_is(serve: Callable[..., Worker], form: Any) -> None:
    worker = serve(CONVOLUTION, config="inputs: [{name: x, datatype: FP32, shape: [3, 8, 8]}]")
    assert answer(worker, form("FP32", np.ones((3, 8, 8), np.float32))).shape == [1, 1, 1]
    assert answer(worker, form("FP32", np.ones((2, 3, 8, 8), np.float32))).shape == [2, 1, 1, 1]


@FORMS
@pytest.mark.parametrize(("datatype", "dtype"), [("FP64", "f8"), ("FP16", "f2"), ("INT32", "i4"), ("INT64", "i8")])
def test_numbers_become_those_of_the_model(serve: Callable[..., Worker], form: Any, datatype: str, dtype: str) -> None:
    shown = "FP16" if datatype == "FP16" else "FP64"
    assert answer(serve(LINEAR), form(datatype, np.ones((1, 5), dtype))) == (shown, [1, 2], [5.0, 5.0])


def test_whole_numbers_become_those_of_the_model_at_torchserves_paths(serve: Callable[..., Worker]) -> None:
    worker = serve(LINEAR)
    [[_, _, status, _, _, body, error]] = worker.infer(row("a", b"[1, 2, 3, 4, 5]", "application/json"))
    assert (status, json.loads(body)) == (200, [15.0, 15.0]), error


def test_two_requests_of_one_batch_get_their_own_rows(serve: Callable[..., Worker]) -> None:
    worker = serve(LINEAR)
    first = over_rest("FP32", np.ones((2, 5), np.float32))
    second = over_rest("FP32", np.full((1, 5), 2, np.float32))._replace(job_id="b")
    plain = row("c", b"[0, 0, 0, 0, 1.0]", "application/json")
    results = {each[0]: each[5] for each in worker.infer(first, second, plain)}
    assert read(first, results["a"]) == ("FP32", [2, 2], [5.0] * 4)
    assert read(second, results["b"]) == ("FP32", [1, 2], [10.0] * 2)
    assert json.loads(results["c"]) == [1.0, 1.0]


def test_a_classifier_answers_each_image_with_a_text(serve: Callable[..., Worker]) -> None:
    worker = serve(CHANNELS, "image_classifier")
    found = answer(worker, over_rest("FP32", np.ones((2, 3, 8, 8), np.float32)))
    assert (found.datatype, found.shape) == ("BYTES", [2])
    assert [sorted(json.loads(each)) for each in found.data] == [["0", "1", "2"]] * 2


def test_a_batch_with_a_bad_row_is_refused_with_its_reason(serve: Callable[..., Worker]) -> None:
    tensor = {"name": "x", "datatype": "BYTES", "shape": [2], "data": ["no image", "nor this"]}
    body = json.dumps({"inputs": [tensor]}).encode()
    worker = serve(CHANNELS, "image_classifier")
    [[_, _, status, _, _, _, error]] = worker.infer(
        InferRow("a", [], "application/json", body, OPEN_INFERENCE_REST, False)
    )
    assert status == 400, error
    assert "image" in error
