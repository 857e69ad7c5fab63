"""Texts with other shapes than their number, as in examples of MLServer's documentation, over REST and gRPC."""

import asyncio
import json
from typing import Any

import pytest
from mlserver import MLModel, types
from mlserver.codecs import StringCodec
from tests.features.mlserver.frontend import Frontend, tensor, text_message

INPUTS = {"name": "Foo Bär", "message": "Hello from Client (REST)!"}
TEXT = json.dumps(INPUTS, ensure_ascii=False)


class JsonHelloWorldModel(MLModel):
    """docs/examples/custom-json of MLServer."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        request = self._extract_json(payload)
        response = {"request": request, "server_response": "Got your request. Hello from the server."}
        response_bytes = json.dumps(response).encode("UTF-8")
        return types.InferenceResponse(
            id=payload.id,
            model_name=self.name,
            model_version=self.version,
            outputs=[
                types.ResponseOutput(
                    name="echo_response",
                    shape=[len(response_bytes)],
                    datatype="BYTES",
                    data=[response_bytes],
                    parameters=types.Parameters(content_type="str"),
                )
            ],
        )

    def _extract_json(self, payload: types.InferenceRequest) -> dict[str, Any]:
        inputs = {}
        for inp in payload.inputs:
            inputs[inp.name] = json.loads("".join(self.decode(inp, default_codec=StringCodec)))
        return inputs


@pytest.mark.parametrize("length", [len(TEXT), len(TEXT.encode())])
async def test_over_rest(length: int) -> None:
    frontend = await Frontend(JsonHelloWorldModel).load()
    answer = await frontend.infer([tensor("echo_request", [TEXT], "BYTES", [length])]).answer()
    assert answer.status == 200, answer.error
    (said,) = answer.outputs["echo_response"]
    assert json.loads(said)["request"] == {"echo_request": INPUTS}


async def test_over_grpc() -> None:
    frontend = await Frontend(JsonHelloWorldModel).load()
    message = text_message(TEXT)
    message.inputs[0].shape[:] = [len(TEXT.encode())]
    answer = await frontend.call_grpc(message).answer()
    assert answer.status == 200, answer.error
    (output,) = answer.messages[0].outputs
    assert json.loads(output.contents.bytes_contents[0])["request"] == {"text": INPUTS}


@pytest.mark.parametrize(("data", "shape"), [(["1"], [11]), (["1", "2"], [2, 11]), (["[1", "]"], [1]), ("1", [8])])
async def test_texts_may_have_any_shape_as_in_mlserver(data: Any, shape: list[int]) -> None:
    frontend = await Frontend(JsonHelloWorldModel).load()
    answer = await frontend.infer([tensor("x", data, "BYTES", shape)]).answer()
    assert answer.status == 200, answer.error


async def test_numbers_may_not() -> None:
    frontend = await Frontend(JsonHelloWorldModel).load()
    answer = await frontend.infer([tensor("x", [1, 2], "INT32", [3])]).answer()
    assert answer.status == 400
    assert "the shape [3] needs 3" in str(answer.error)


async def test_such_texts_are_no_rows_of_a_batch() -> None:
    frontend = await Frontend(JsonHelloWorldModel, max_batch_size=2, max_batch_time=60.0).load()
    jobs = [frontend.infer([tensor("x", [TEXT], "BYTES", [len(TEXT)])]) for _ in range(2)]
    for answer in await asyncio.gather(*(job.answer() for job in jobs)):
        assert answer.status == 200, answer.error
        assert json.loads(answer.outputs["echo_response"][0])["request"] == {"x": INPUTS}
