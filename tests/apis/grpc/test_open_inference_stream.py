"""`ModelStreamInfer` as Triton's clients use it: independent requests, answered in envelopes."""

import asyncio

import grpc
import pytest
from grpc import StatusCode
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.apis.grpc.infer_streams import (
    TRITON,
    answering,
    final,
    ids,
    received,
    request,
    respond,
    respond_with,
    response,
    rest,
    stream,
    until,
)
from tests.apis.grpc.models import later, registry_of, stateful_model
from tests.endpoints.fake_serving import FakeModel, Submitted
from tests.endpoints.fakes import make_settings
from tests.examples import examples

from torchserve_py.apis.grpc.open_inference_requests import OpenInferenceJobs
from torchserve_py.apis.grpc.open_inference_stream import InferStream
from torchserve_py.apis.grpc.protos.open_inference_pb2 import ModelStreamInferResponse
from torchserve_py.base.causes import Cause
from torchserve_py.net.http2.rpc import EOF
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest


async def test_each_request_is_answered_in_an_envelope(start):
    serving = await start(answering(FakeModel()))
    call = stream(serving)
    for id_ in ("a", "b"):
        await call.write(request(id_, raw=True))
        message = await call.read()
        assert message.infer_response.id == id_
        assert not message.error_message
        assert final(message)
    assert await rest(call) == []
    assert await call.code() is StatusCode.OK
    assert [each.protocol for each in serving.registry.model.calls] == ["open_inference_grpc"] * 2


async def test_a_failure_is_told_and_the_call_goes_on(start):
    serving = await start(registry_of(FakeModel("good"), FakeModel("bad"), FakeModel("gone")))
    good, bad, gone = serving.registry.registered
    good.behave = respond
    bad.behave = lambda call: call.part(status=400, error="as it was told")
    gone.behave = lambda call: call.fail(Cause.worker_died)
    call = stream(serving, TRITON)
    for id_, model in enumerate(("bad", "other", "gone", "good")):
        await call.write(request(str(id_), model=model))
    await call.write(b"\xff\xff")
    messages = await rest(call)
    assert ids(messages) == ["0", "1", "2", "3", ""]
    assert [message.error_message for message in messages] == [
        "as it was told",
        "Model not found: other",
        "The worker that ran the request has ended; the log of the model may say more.",
        "",
        messages[4].error_message,
    ]
    assert "no inference.ModelInferRequest" in messages[4].error_message
    assert all(final(message) for message in messages)
    assert messages[2].infer_response.parameters["ts-error-cause"].string_param == "worker_died"
    assert await call.code() is StatusCode.OK


async def test_a_client_may_want_a_status_instead(start):
    serving = await start(answering(FakeModel()))
    call = stream(serving, (("triton_grpc_error", "true"),))
    await call.write(request("a"))
    assert (await call.read()).infer_response.id == "a"
    await call.write(request("b", model="other"))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() is StatusCode.NOT_FOUND


async def test_responses_come_in_the_order_of_the_requests(start):
    serving = await start(registry_of(FakeModel("slow"), FakeModel("fast")))
    slow, fast = serving.registry.registered
    slow.behave, fast.behave = later, respond
    call = stream(serving, TRITON)
    for id_, model in enumerate(("fast", "slow", "fast")):
        await call.write(request(str(id_), model=model))
    assert (await call.read()).infer_response.id == "0"
    await until(lambda: slow.calls and len(fast.calls) == 2)
    respond(slow.calls[0])
    assert ids(await rest(call)) == ["1", "2"]


@settings(max_examples=examples(40))
@given(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6, max_size=6))
async def test_whatever_the_order_in_which_they_are_ready(order, kinds):
    """Six requests: to a model that answers once, that streams, that declares that it may."""
    models = [FakeModel("once"), FakeModel("streams"), FakeModel("decoupled")]
    models[2].declared = {"decoupled": True}
    registry = registry_of(*models)
    for model in models:
        model.behave = later
    context = FakeContext([request(str(id_), model=models[kind].name) for id_, kind in enumerate(kinds)])
    jobs = OpenInferenceJobs(make_settings(None, default_response_timeout=60), registry)
    running = asyncio.create_task(InferStream(jobs, context, set(), 1000, "triton").run())
    await until(lambda: sum(len(model.calls) for model in models) == 6)
    calls = {ModelInferRequest.FromString(call.body).id: call for model in models for call in model.calls}
    for id_ in map(str, order):
        call = calls[id_]
        if kinds[int(id_)]:
            call.part(response(call, "1"), more=True)
            await asyncio.sleep(0)
        call.part(response(call, "2"))
        await asyncio.sleep(0)
    await running
    messages = [ModelStreamInferResponse.FromString(body) for body in context.written]
    for id_, kind in enumerate(kinds):
        mine = [message for message in messages if message.infer_response.id == str(id_)]
        assert [message.infer_response.model_version for message in mine] == (["1", "2"] if kind else ["2"])
        assert [final(message) for message in mine] == ([False, True] if kind else [True])
    once = [id_ for id_ in ids(messages) if kinds[int(id_)] == 0]
    assert once == sorted(once)


class FakeContext:
    """A call whose requests are there already."""

    credential = None
    seconds_left = None
    peer = "ipv4:127.0.0.1:50000"

    def __init__(self, requests: list[ModelInferRequest]) -> None:
        self._requests = [each.SerializeToString() for each in requests]
        self.written: list[bytes] = []
        self.metadata = self.trailing_metadata = ()

    async def read(self):
        return self._requests.pop(0) if self._requests else EOF

    async def room(self):
        pass

    def send(self, message):
        self.written.append(message)


async def test_a_stream_of_responses_holds_nobody_up(start):
    serving = await start(registry_of(FakeModel("streams"), FakeModel("fast")))
    streams, fast = serving.registry.registered
    streams.behave, fast.behave = later, respond
    call = stream(serving, TRITON)
    await call.write(request("s", model="streams", triton_enable_empty_final_response=True))
    await until(lambda: streams.calls)
    await call.write(request("f", model="fast"))
    streams.calls[0].part(response(streams.calls[0]), more=True)
    assert sorted(ids([await call.read(), await call.read()])) == ["f", "s"]
    streams.calls[0].part(response(streams.calls[0]))
    (last,) = await rest(call)
    assert (last.infer_response.id, final(last)) == ("s", True)


@pytest.mark.parametrize(
    ("behave", "finals"),
    [
        (respond_with("1", "2", end="3"), [False, False, True]),
        (respond_with("1", "2"), [False, True]),
        (respond_with("1"), [True]),
        (respond_with(end="1"), [True]),
        (respond_with(), []),
    ],
)
async def test_one_response_says_that_it_is_the_last(start, behave, finals):
    serving = await start(answering(FakeModel(), behave))
    call = stream(serving, TRITON)
    await call.write(request("a"))
    messages = await rest(call)
    assert [final(message) for message in messages] == finals
    assert [message.infer_response.model_version for message in messages] == [str(n + 1) for n in range(len(finals))]


@pytest.mark.parametrize(
    ("behave", "finals"),
    [
        (respond_with("1", "2", end="3"), [("1", False), ("2", False), ("3", True)]),
        (respond_with("1", "2"), [("1", False), ("2", False), ("1.0", True)]),
        (respond_with(), [("1.0", True)]),
    ],
)
async def test_a_client_may_want_an_empty_last_message(start, behave, finals):
    serving = await start(answering(FakeModel(), behave))
    call = stream(serving)
    await call.write(request("a", triton_enable_empty_final_response=True))
    messages = await rest(call)
    assert [(message.infer_response.model_version, final(message)) for message in messages] == finals
    assert ids(messages) == ["a"] * len(messages)
    assert {message.infer_response.model_name for message in messages} == {"noop"}


async def test_responses_before_a_failure_are_sent(start):
    def behave(call: Submitted) -> None:
        call.part(response(call, "1"), more=True)
        call.part(status=500, error="as it was told")

    serving = await start(answering(FakeModel(), behave))
    call = stream(serving, TRITON)
    await call.write(request("a"))
    first, second = await rest(call)
    assert (first.infer_response.model_version, final(first)) == ("1", False)
    assert (second.error_message, second.infer_response.id, final(second)) == ("as it was told", "a", True)


async def test_three_sequences_interleaved(start):
    serving = await start(answering(stateful_model(queue_size=2), later))
    model = serving.registry.model
    call = stream(serving)
    sequences = (1000, 1001, "uuid")
    for number in range(3):
        for each in sequences:
            await call.write(
                request(f"{each}_{number}", sequence_id=each, sequence_start=number == 0, sequence_end=number == 2)
            )
    await until(lambda: len(model.calls) == 6)  # two of each: that is what its queue takes
    for number in range(9):
        await until(lambda number=number: len(model.calls) > number)
        respond(model.calls[number])
    answered = ids(await rest(call))
    assert len(answered) == 9
    for each in sequences:
        assert [id_ for id_ in answered if id_.startswith(f"{each}_")] == [f"{each}_{number}" for number in range(3)]
        mine = [call for call in model.calls if call.sequence_id == str(each)]
        assert [(call.starts_sequence, call.ends_sequence) for call in mine] == [
            (True, False),
            (False, False),
            (False, True),
        ]


async def test_the_sequence_of_all_requests_may_be_named_in_the_metadata(start):
    serving = await start(answering(stateful_model(), later))
    model = serving.registry.model
    call = stream(serving, (*TRITON, ("ts_request_sequence_id", "a")))
    for id_ in ("0", "1", "2"):
        await call.write(request(id_))
    for number in range(3):
        await until(lambda number=number: len(model.calls) > number)
        assert len(model.calls) == number + 1
        respond(model.calls[number])
    assert ids(await rest(call)) == ["0", "1", "2"]
    assert [each.sequence_id for each in model.calls] == ["a"] * 3


async def test_a_sequence_that_is_not_open_is_refused(start):
    serving = await start(answering(stateful_model()))
    call = stream(serving)
    await call.write(request("a", sequence_id=7))
    await call.write(request("b", triton_x=True))
    first, second = await rest(call)
    assert "START flag" in first.error_message
    assert "correlation ID" in second.error_message
    assert await call.code() is StatusCode.OK


async def test_a_half_close_finishes_what_is_pending(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    call = stream(serving, TRITON)
    for id_ in ("a", "b"):
        await call.write(request(id_))
    await call.done_writing()
    await until(lambda: len(model.calls) == 2)
    for each in model.calls:
        respond(each)
    assert ids(await received(call)) == ["a", "b"]
    assert await call.code() is StatusCode.OK


async def test_cancelling_the_call_cancels_its_jobs(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    call = stream(serving, TRITON)
    await call.write(request("a"))
    await until(lambda: model.calls)
    call.cancel()
    await model.cancelled.wait()


async def test_reading_stops_while_too_much_is_unanswered(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    call = stream(serving, TRITON)
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await call.write(request(str(written), padding="x" * 50_000))
            written += 1

    writing = asyncio.create_task(write())
    await until(lambda: len(model.calls) == 64)
    done, _ = await asyncio.wait([writing], timeout=0.5)
    assert not done
    assert len(model.calls) == 64
    respond(model.calls[0])
    await call.read()
    await until(lambda: len(model.calls) == 65)
    writing.cancel()


async def test_without_requests_there_is_nothing_to_do(serving):
    call = stream(serving)
    assert await rest(call) == []
    assert await call.code() is StatusCode.OK


async def test_a_server_that_stops_answers_what_it_has(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    call = stream(serving, TRITON)
    waiting = stream(serving)  # has sent nothing
    await waiting.write(request("b", model="other", raw=True))
    assert (await waiting.read()).error_message
    await call.write(request("a"))
    await until(lambda: model.calls)
    closing = asyncio.create_task(serving.endpoints.close())
    await asyncio.sleep(0)
    respond(model.calls[0])
    assert (await call.read()).infer_response.id == "a"
    for each in (call, waiting):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await each.read()
        assert failed.value.code() is StatusCode.UNAVAILABLE
        assert dict(failed.value.trailing_metadata() or ())["ts-error-cause"] == "draining"
    await closing
