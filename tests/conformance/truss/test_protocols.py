"""The other protocols that a Truss answers: TorchServe's predictions, and Open Inference over REST."""

import json
from typing import Any

import httpx
import pytest
from tests.conformance.truss.serving import Serving, Truss

TRUSSES = {
    "echo": Truss("basics:Echo"),
    "steps": Truss("answers:Answers"),
    "streams": Truss("streams:Streams"),
}


def predictions(serving: Serving, name: str, inputs: Any) -> httpx.Response:
    return serving.client.post(f"/predictions/{name}", content=json.dumps(inputs))


def infer(serving: Serving, name: str, *tensors: dict[str, Any]) -> httpx.Response:
    return serving.client.post(f"/v2/models/{name}/infer", json={"id": "7", "inputs": list(tensors)})


def test_predictions_take_and_give_json(serving: Serving) -> None:
    response = predictions(serving, "echo", {"a": [1, "ü"]})
    assert (response.status_code, response.json()) == (200, {"a": [1, "ü"]})
    assert predictions(serving, "echo/1.0", 1).json() == 1


def test_predictions_stream(serving: Serving) -> None:
    response = predictions(serving, "streams", "numbers")
    assert (response.text, response.headers["transfer-encoding"]) == ("01234", "chunked")


@pytest.mark.parametrize(("inputs", "status"), [("value error", 500), ("http 422", 422)])
def test_errors_of_predictions_have_torchserves_shape(inputs: str, status: int, serving: Serving) -> None:
    response = predictions(serving, "steps", inputs)
    assert response.status_code == status
    assert set(response.json()) == {"code", "type", "message"}
    assert "a secret detail" not in response.text


def test_open_inference_gives_the_tensors_by_name(serving: Serving) -> None:
    numbers = {"name": "numbers", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 4]}
    texts = {"name": "texts", "datatype": "BYTES", "shape": [1], "data": ["hello"]}
    response = infer(serving, "echo", numbers, texts)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["model_name"], answer["id"]) == ("echo", "7")
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["numbers"]["datatype"] == "INT64"
    assert outputs["numbers"]["shape"] == [2, 2]
    assert outputs["texts"]["data"] == ["hello"]


def test_open_inference_tells_whether_a_truss_is_ready(serving: Serving) -> None:
    assert serving.client.get("/v2/models/echo/ready").status_code == 200
    metadata = serving.client.get("/v2/models/echo").json()
    assert (metadata["name"], metadata["platform"]) == ("echo", "truss")


def test_open_inference_tells_errors_in_its_own_shape(serving: Serving) -> None:
    tensor = {"name": "x", "datatype": "INT64", "shape": [3], "data": [1]}
    response = infer(serving, "echo", tensor)
    assert (response.status_code, list(response.json())) == (400, ["error"])
