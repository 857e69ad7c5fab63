"""`generate`: texts and inference requests in, texts out."""

import json

from tests.apis.open_inference.worker.rest_documents import answer, fp32, received, refusal

from ts.apis.open_inference.types import InferenceResponse, Tensor

_TEXT_MODEL = {
    "inputs": [
        {"name": "prompt", "datatype": "BYTES", "shape": [1, -1]},
        {"name": "count", "datatype": "INT32", "shape": [1]},
    ]
}


def test_the_text_dialect_fills_the_inputs_by_name():
    document = {"text_input": "hi", "count": 3, "id": "a", "stop": ["x"], "parameters": {"temperature": 0.5}}
    to = received(document, endpoint="generate", declared=_TEXT_MODEL)
    prompt, count = to.request.inputs
    assert (prompt.name, prompt.shape, prompt.data) == ("prompt", [1, 1], ["hi"])
    assert (count.name, count.shape, count.data) == ("count", [1], [3])
    assert to.request.parameters == {"stop": ["x"], "temperature": 0.5}
    _, body = to.encode(
        InferenceResponse(
            "m",
            "1",
            None,
            {"details": {"finish_reason": "length"}},
            [Tensor("out", "BYTES", [1], [b"ho"]), Tensor("scores", "FP32", [2], [0.5, 1.0])],
        )
    )
    assert json.loads(body) == {
        "id": "a",
        "model_name": "m",
        "model_version": "1",
        "text_output": "ho",
        "scores": [0.5, 1.0],
        "details": {"finish_reason": "length"},
    }


def test_a_model_that_declares_nothing_gets_the_text_as_text_input():
    (tensor,) = received({"text_input": "hi"}, endpoint="generate_stream").request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("text_input", "BYTES", [1])


def test_the_text_dialect_refuses_what_it_cannot_place():
    assert refusal({"prompt": "x"}, endpoint="generate").status == 422
    assert refusal({"text_input": 3}, endpoint="generate").status == 422
    numbers = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    assert refusal({"text_input": "x"}, endpoint="generate", declared=numbers).status == 400
    wide = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2]}]}
    assert refusal({"text_input": "x"}, endpoint="generate", declared=wide).status == 400


def test_generate_understands_an_inference_request():
    to = received(fp32([1], [1]), endpoint="generate")
    _, document, _ = answer(to, Tensor("y", "FP32", [1], [2.0]))
    assert document["outputs"] == [{"name": "y", "shape": [1], "datatype": "FP32", "data": [2.0]}]
