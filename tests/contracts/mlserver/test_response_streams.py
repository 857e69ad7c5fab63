"""An MLServer model takes and gives streams: one request or many, one response or many."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mlserver import MLModel
from mlserver.types import Parameters
from tests.contracts.mlserver.frontend import Frontend, tensor, text_message
from tests.contracts.mlserver.small_models import Double, InferenceRequest, InferenceResponse, respond, say

from ts.protocol.messages import TAKEN


class Words(MLModel):
    """Streams the words of what it is sent."""

    closed = False

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        try:
            async for payload in payloads:
                for word in self.decode(payload.inputs[0]).root[0].decode().split():
                    yield say(self, word)
        finally:
            type(self).closed = True


async def test_one_request_can_have_many_responses() -> None:
    class Counting(MLModel):
        async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
            request = await anext(payloads)
            for number in range(int(request.inputs[0].data[0])):
                yield respond(self, [number])

    frontend = await Frontend(Counting).load()
    answer = await frontend.infer([tensor("n", [3])], endpoint="infer_stream", id="one").answer()
    assert [event["outputs"][0]["data"] for event in answer.events] == [[0], [1], [2]]
    assert {event["id"] for event in answer.events} == {"one"}
    assert [bool(row[1]) for row in answer.rows] == [True, True, True, False]
    assert (await frontend.infer([tensor("n", [0])], endpoint="generate_stream").answer()).events == []
    # Without predict, one response is an answer, and any other number of them is none.
    assert (await frontend.infer([tensor("n", [1])]).answer()).outputs == {"out": [0]}
    for count, words in ((0, "no response"), (5, "several responses")):
        answer = await frontend.infer([tensor("n", [count])]).answer()
        assert answer.status == 501
        assert words in answer.error
        assert "infer_stream" in answer.error


@pytest.mark.parametrize("endpoint", ["infer_stream", "generate_stream"])
async def test_the_headers_of_a_streamed_response_are_sent(endpoint: str) -> None:
    class WithHeader(MLModel):
        async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
            response = respond(self, [1])
            response.parameters = Parameters(headers={"x-out": "1"})
            yield response

    frontend = await Frontend(WithHeader).load()
    answer = await frontend.infer([tensor("n", [1])], endpoint=endpoint).answer()
    assert answer.headers["x-out"] == "1"
    assert "headers" not in answer.events[0].get("parameters", {})


async def test_a_stream_of_a_model_with_predict_only_has_one_response() -> None:
    frontend = await Frontend(Double).load()
    answer = await frontend.infer([tensor("x", [4])], endpoint="infer_stream").answer()
    assert [event["outputs"][0]["data"] for event in answer.events] == [[8]]
    assert not frontend.runtime.declares["decoupled"]


async def test_many_requests_can_have_many_responses() -> None:
    frontend = await Frontend(Words).load()
    assert frontend.runtime.declares["streams_in"]
    job = frontend.stream_in(text_message("how do", "first"))
    await frontend.until(lambda: len(job.rows) == 2)
    job.send(text_message("you", "second").SerializeToString())
    await frontend.until(lambda: len(job.rows) == 3)
    assert [TAKEN, job.id, 1] in frontend.connection.messages
    job.send(text_message("do", "third").SerializeToString())
    job.send(b"", more=False)
    answer = await job.answer()
    assert [message.outputs[0].contents.bytes_contents[0] for message in answer.messages] == [
        b"how",
        b"do",
        b"you",
        b"do",
    ]
    assert {message.id for message in answer.messages} == {"first"}
    assert frontend.connection.messages == [[TAKEN, job.id, 1]] * 2
    job.send(text_message("late").SerializeToString())  # the stream has ended meanwhile: nothing happens


async def test_many_requests_can_have_one_response() -> None:
    class Joining(MLModel):
        async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
            texts = [payload.inputs[0].data[0].decode() async for payload in payloads]
            yield say(self, "+".join(texts))

    frontend = await Frontend(Joining).load()
    job = frontend.stream_in(text_message("a"))
    job.send(text_message("b").SerializeToString())
    job.send(text_message("c").SerializeToString(), more=False)  # the last one may come with the end
    (message,) = (await job.answer()).messages
    assert message.outputs[0].contents.bytes_contents[0] == b"a+b+c"


async def test_a_stream_that_fails_says_so_after_what_it_has_given() -> None:
    frontend = await Frontend(Words).load()
    job = frontend.stream_in(text_message("fine"))
    job.send(b"\xff\xff", more=False)
    answer = await job.answer()
    assert len(answer.messages) == 1
    assert answer.status == 400
    assert "no inference.ModelInferRequest" in answer.error


async def test_the_generator_of_a_stream_is_closed_when_its_client_leaves() -> None:
    Words.closed = False
    frontend = await Frontend(Words).load()
    job = frontend.stream_in(text_message("one two"))
    await frontend.until(lambda: len(job.rows) == 2)
    job.leave()
    with pytest.raises(asyncio.CancelledError):
        await job.task
    assert Words.closed


async def test_a_model_that_never_awaits_leaves_room_for_others() -> None:
    class Endless(MLModel):
        async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
            while True:
                yield respond(self, [1])

    frontend = await Frontend(Endless).load()
    job = frontend.infer(endpoint="infer_stream")
    await job.parts(3)
    job.leave()
    with pytest.raises(asyncio.CancelledError):
        await job.task


async def test_predict_stream_may_be_a_coroutine_that_returns_an_iterator() -> None:
    class Returning(MLModel):
        async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> Any:
            request = await anext(payloads)

            async def responses() -> AsyncIterator[InferenceResponse]:
                yield respond(self, [len(request.inputs)])

            return responses()

    frontend = await Frontend(Returning).load()
    answer = await frontend.infer([tensor("x", [1])], endpoint="infer_stream").answer()
    assert answer.events[0]["outputs"][0]["data"] == [1]
