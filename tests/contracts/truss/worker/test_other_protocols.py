"""A Truss answers other protocols: TorchServe's predictions and the Open Inference Protocol."""

import json
from collections.abc import Callable
from typing import Any

import fastapi
from starlette.exceptions import HTTPException
from tests.contracts.truss.worker.frontend import Frontend

from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, TRUSS

Serve = Callable[..., Frontend]


class Echo:
    def predict(self, inputs: Any) -> Any:
        if inputs == {"x": ["fail"]} or inputs == "fail":
            raise HTTPException(418, "no tea")
        return inputs


async def test_json_is_decoded_by_the_charset_of_its_content_type(serve: Serve) -> None:
    frontend = serve(Echo())
    for protocol in (None, TRUSS):
        latin, unknown = (f"application/json; charset={charset}" for charset in ("latin-1", "utf-9"))
        answered = await frontend.infer(raw=b'"\xe9"', content_type=latin, protocol=protocol).answer()
        assert answered.json == "é"
        assert (await frontend.infer(raw=b"1", content_type=unknown, protocol=protocol).answer()).status == 415


async def test_predictions_take_the_body_of_a_predict(serve: Serve) -> None:
    frontend = serve(Echo())
    assert (await frontend.infer({"a": 1}, protocol=None).answer()).json == {"a": 1}
    parameters = [["b", None, "2"], [None, "application/json", b'{"a": 1}']]
    assert (await frontend.infer(raw=parameters, content_type=None, protocol=None).answer()).json == {"a": 1, "b": "2"}
    failed = await frontend.infer("fail", protocol=None).answer()
    assert (failed.status, failed.error, failed.body) == (418, "no tea", b"")
    refused = await frontend.infer(raw=b"nope", protocol=None).answer()
    assert refused.status == 400
    assert refused.error.startswith("Invalid JSON payload")
    refused = await frontend.infer(raw=[["b", None, "2"], [None, None, b"[]"]], protocol=None).answer()
    assert "need a body that is a JSON object" in refused.error


def tensors(**inputs: Any) -> dict[str, Any]:
    return {"id": "7", "inputs": [{"name": name, **tensor} for name, tensor in inputs.items()]}


async def test_open_inference_tensors_are_the_inputs_and_the_result_is_the_outputs(serve: Serve) -> None:
    frontend = serve(Echo())
    sent = tensors(
        x={"datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
        t={"datatype": "BYTES", "shape": [1], "data": ["text"]},
    )
    answer = await frontend.infer(sent, protocol=OPEN_INFERENCE_REST).answer()
    assert answer.error is None, answer.error
    told = answer.json
    assert (told["id"], told["model_name"]) == ("7", "mine")
    outputs = {output["name"]: output for output in told["outputs"]}
    assert (outputs["x"]["shape"], outputs["x"]["datatype"]) == ([2, 2], "FP64")
    assert outputs["x"]["data"] == [1, 2, 3, 4]
    assert (outputs["t"]["datatype"], outputs["t"]["data"]) == ("BYTES", ["text"])
    failed = await frontend.infer(
        tensors(x={"datatype": "BYTES", "shape": [1], "data": ["fail"]}), protocol=OPEN_INFERENCE_REST
    ).answer()
    assert (failed.status, failed.error) == (418, "no tea")
    assert (await frontend.infer(raw=b"nope", protocol=OPEN_INFERENCE_REST).answer()).status == 400


async def test_open_inference_results_that_are_no_dict_and_streams(serve: Serve) -> None:
    class Model:
        def predict(self, inputs: Any) -> Any:
            (what,) = inputs["x"]
            results = {
                "response": fastapi.Response(b""),
                "stream": (each for each in ["a", "b"]),
                "ragged": [[1, 2], [3]],
                "null": {"text": "a", "detail": None},
                "nested": {"text": "a", "detail": {"x": 1}},
                "dicts": [{"label": "a", "score": 0.5}],
                "list": [1, 2],
            }
            return results[what]

    frontend = serve(Model())

    async def ask(what: str, *headers: Any) -> Any:
        body = tensors(x={"datatype": "BYTES", "shape": [1], "data": [what]})
        return await frontend.infer(body, protocol=OPEN_INFERENCE_REST, headers=headers).answer()

    (output,) = (await ask("list")).json["outputs"]
    assert (output["name"], output["datatype"], output["data"]) == ("output", "INT64", [1, 2])
    (gathered,) = (await ask("stream")).json["outputs"]
    assert gathered["data"] == ["ab"]
    parts = (await ask("stream", (":endpoint", "infer_stream"))).chunks
    assert len(parts) == 2
    assert b'"a"' in parts[0]
    for what, expected in (("null", None), ("nested", {"x": 1}), ("dicts", [{"label": "a", "score": 0.5}])):
        outputs = {each["name"]: each for each in (await ask(what)).json["outputs"]}
        detail = outputs["output" if what == "dicts" else "detail"]
        assert (detail["datatype"], detail["shape"], json.loads(detail["data"][0])) == ("BYTES", [1], expected)
        assert what == "dicts" or outputs["text"]["data"] == ["a"]
    response = await ask("response")
    assert response.status == 500
    assert "HTTP response of its own" in response.error
    ragged = await ask("ragged")
    assert ragged.status == 500
    assert "its lists have different lengths" in ragged.error


async def test_a_text_comes_with_its_parameters(serve: Serve) -> None:
    class Model:
        def predict(self, inputs: Any) -> str:
            return json.dumps(inputs)

    body = {"text_input": "hi", "parameters": {"max_tokens": 3}}
    headers = ((":endpoint", "generate"),)
    answer = await serve(Model()).infer(body, protocol=OPEN_INFERENCE_REST, headers=headers).answer()
    assert json.loads(answer.json["text_output"]) == {"max_tokens": 3, "text_input": ["hi"]}


async def test_open_inference_over_grpc(serve: Serve) -> None:
    from ts.apis.open_inference.protos import infer_pb2

    sent = infer_pb2.ModelInferRequest(model_name="mine", id="7")
    sent.inputs.add(name="x", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, 2])
    frontend = serve(Echo())
    answer = await frontend.infer(raw=sent.SerializeToString(), protocol=OPEN_INFERENCE_GRPC).answer()
    told = infer_pb2.ModelInferResponse.FromString(answer.body)
    assert (told.id, list(told.outputs[0].contents.int64_contents)) == ("7", [1, 2])
