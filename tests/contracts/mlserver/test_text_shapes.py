"""Texts with other shapes than their number, as in examples of MLServer's documentation, over REST and gRPC."""

import asyncio
import json
from typing import Any

import pytest
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec, StringCodec
from tests.contracts.mlserver.frontend import Frontend, tensor, text_message

from ts.contracts.mlserver.unread_data import let_numpy_codec_take_memory

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


class Told(MLModel):
    """Answers with what its first input is, in JSON."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        given = payload.inputs[0]
        text = json.dumps({"shape": given.shape, "data": given.data.root})
        output = types.ResponseOutput(name="told", shape=[1], datatype="BYTES", data=[text])
        return types.InferenceResponse(model_name=self.name, outputs=[output])


@pytest.mark.parametrize("data", [[{"age": 3, "tags": ["a"]}], [None, "text"], [{"a": 1}, None, 2.5, True]])
async def test_any_value_of_json_reaches_the_model_as_a_text(data: list[Any]) -> None:
    frontend = await Frontend(Told).load()
    answer = await frontend.infer([tensor("x", data, "BYTES", [len(data)])]).answer()
    assert answer.status == 200, answer.error
    assert json.loads(answer.outputs["told"][0]) == {"shape": [len(data)], "data": data}


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "whole"),
    [
        ([1, 2, 3], "INT32", [-1], [3]),
        ([1.5, 2.5, 3.5, 4.5], "FP32", [-1, 2], [2, 2]),
        (["a", "b"], "BYTES", [-1], [2]),
        (["a", "b", "c"], "BYTES", [-1, 2], [-1, 2]),
    ],
)
async def test_one_size_of_a_shape_may_be_open(data: list[Any], datatype: str, shape: list[int], whole: Any) -> None:
    frontend = await Frontend(Told).load()
    answer = await frontend.infer([tensor("x", data, datatype, shape)]).answer()
    assert answer.status == 200, answer.error
    assert json.loads(answer.outputs["told"][0]) == {"shape": whole, "data": data}


@pytest.mark.parametrize("shape", [[-1, -1], [-1, 2], [-1, 0], [-2]])
async def test_an_open_size_that_nothing_fits_is_refused(shape: list[int]) -> None:
    frontend = await Frontend(Told).load()
    answer = await frontend.infer([tensor("x", [1, 2, 3], "INT32", shape)]).answer()
    assert answer.status in (400, 422)
    assert "shape" in str(answer.error)


async def test_an_open_size_over_grpc() -> None:
    frontend = await Frontend(Told).load()
    message = text_message("a")
    message.inputs[0].shape[:] = [-1]
    message.inputs[0].datatype = "INT32"
    message.inputs[0].contents.Clear()
    message.inputs[0].contents.int_contents[:] = [1, 2]
    answer = await frontend.call_grpc(message).answer()
    assert answer.status == 200, answer.error


async def test_such_values_and_open_sizes_are_rows_of_a_batch() -> None:
    frontend = await Frontend(Told, max_batch_size=2, max_batch_time=60.0).load()
    jobs = [frontend.infer([tensor("x", [{"number": number}], "BYTES", [-1])]) for number in range(2)]
    answers = await asyncio.gather(*(job.answer() for job in jobs))
    assert {answer.status for answer in answers} == {500}, "one row is answered for two"
    assert "a batch of 2 rows" in str(answers[0].error)


class Sized(MLModel):
    """Answers with the shape of its first input as an array."""

    async def load(self) -> bool:
        let_numpy_codec_take_memory()
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        array = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        return types.InferenceResponse(
            model_name=self.name, outputs=[StringCodec.encode_output("y", [str(array.shape)])]
        )


@pytest.mark.parametrize(
    ("data", "shape", "status"),
    [([1], [0], 400), (["a", "b"], [3], 400), (["a", "b"], [2, 1], 200)],
)
async def test_texts_that_become_an_array_must_fit_their_shape(data: list[Any], shape: list[int], status: int) -> None:
    frontend = await Frontend(Sized).load()
    answer = await frontend.infer([tensor("x", data, "BYTES", shape)]).answer()
    assert answer.status == status, answer.error
    assert status == 200 or f"Input 'x' is no array of the shape {shape}" in str(answer.error)


async def test_such_texts_over_grpc() -> None:
    frontend = await Frontend(Sized).load()
    message = text_message("a")
    message.inputs[0].shape[:] = [0]
    answer = await frontend.call_grpc(message).answer()
    assert (answer.status, "is no array of the shape [0]" in str(answer.error)) == (400, True)
