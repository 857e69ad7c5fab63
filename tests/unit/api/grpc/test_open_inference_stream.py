"""`ModelStreamInfer`, as Triton's and as MLServer's clients use it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.fakes import Call, FakeModel, make_settings
from tests.unit.api.grpc.models import later, registry_of, stateful_model

from torchserve_py.api.grpc.open_inference_jobs import OpenInferenceJobs
from torchserve_py.api.grpc.open_inference_stream import InferStreams
from torchserve_py.api.grpc.protos.open_inference_pb2 import ModelStreamInferResponse
from torchserve_py.scheduling.effects import Cause
from ts.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
TRITON = (("x-stream-envelope", "triton"),)
MLSERVER = (("x-stream-envelope", "mlserver"),)


@pytest.fixture(autouse=True)
async def deadline():
    """No test waits for ever."""
    async with asyncio.timeout(30):
        yield


async def until(condition):
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def request(id_: str = "", *, model: str = "noop", raw: bool = False, **parameters: Any) -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=id_)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    if raw:
        message.inputs.add(name="x", datatype="UINT8", shape=[1])
        message.raw_input_contents.append(b"\x01")
    return message


def response(call: Call, text: str = "") -> bytes:
    """What a worker makes of a request: it echoes the id, and says `text` in the version."""
    sent = ModelInferRequest.FromString(call.body)
    return ModelInferResponse(model_name=sent.model_name, id=sent.id, model_version=text).SerializeToString()


def respond(call: Call) -> None:
    call.part(response(call))


def respond_with(*texts: str, end: str | None = None):
    """A model that streams; `end` is what its last part says, None for a last part without a response."""

    def behave(call: Call) -> None:
        for text in texts:
            call.part(response(call, text), more=True)
        call.part(b"" if end is None else response(call, end))

    return behave


def answering(model: FakeModel, behave=respond) -> Any:
    model.behave = behave
    return registry_of(model)


def stream(serving, metadata: Any = None, *, bare: bool = False) -> Any:
    method = serving.inference_channel.stream_stream(
        METHOD,
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=(ModelInferResponse if bare else ModelStreamInferResponse).FromString,
    )
    return method(metadata=metadata)


def final(message: ModelStreamInferResponse) -> bool:
    return message.infer_response.parameters["triton_final_response"].bool_param


async def rest(call) -> list[Any]:
    await call.done_writing()
    return await received(call)


async def received(call) -> list[Any]:
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


def ids(messages) -> list[str]:
    return [message.infer_response.id for message in messages]


# Triton's clients.


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
    gone.behave = lambda call: call.parts.fail(Cause.worker_died)
    call = stream(serving, TRITON)
    for id_, model in enumerate(("bad", "other", "gone", "good")):
        await call.write(request(str(id_), model=model))
    await call.write(b"\xff\xff")
    messages = await rest(call)
    assert ids(messages) == ["0", "1", "2", "3", ""]
    assert [message.error_message for message in messages] == [
        "as it was told",
        "Model not found: other",
        "Worker died.",
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


@settings(max_examples=40, deadline=None)
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
    running = asyncio.create_task(InferStreams(jobs, 1000, "triton").model_stream_infer(None, context))
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

    def __init__(self, requests: list[ModelInferRequest]) -> None:
        self._requests = [each.SerializeToString() for each in requests]
        self.written: list[bytes] = []

    def invocation_metadata(self):
        return ()

    def set_trailing_metadata(self, metadata):
        pass

    async def read(self):
        return self._requests.pop(0) if self._requests else grpc.aio.EOF

    async def write(self, message):
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
    def behave(call: Call) -> None:
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
    closing = asyncio.create_task(serving.doors.close())
    await asyncio.sleep(0)
    respond(model.calls[0])
    assert (await call.read()).infer_response.id == "a"
    for each in (call, waiting):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await each.read()
        assert failed.value.code() is StatusCode.UNAVAILABLE
        assert dict(failed.value.trailing_metadata() or ())["ts-error-cause"] == "draining"
    await closing


# Who has called.


@pytest.mark.parametrize(
    ("message", "metadata", "setting", "enveloped"),
    [
        (request("a"), None, "auto", False),
        (request("a", mine="text"), None, "auto", False),
        (request("a", raw=True), None, "auto", True),
        (request("a", priority=1), None, "auto", True),
        (request("a", timeout=1), None, "auto", True),
        (request("a", sequence_id=1), None, "auto", True),
        (request("a", triton_x=True), None, "auto", True),
        (request("a"), (("triton_grpc_error", "false"),), "auto", True),
        (request("a", raw=True), MLSERVER, "auto", False),
        (request("a"), TRITON, "auto", True),
        (request("a"), None, "triton", True),
        (request("a", raw=True), None, "mlserver", False),
        (request("a"), TRITON, "mlserver", True),
    ],
)
async def test_whose_messages_are_sent(start, message, metadata, setting, enveloped):
    serving = await start(answering(FakeModel()), grpc_stream_envelope=setting)
    call = stream(serving, metadata, bare=not enveloped)
    await call.write(message)
    (answer,) = await rest(call)
    assert (answer.infer_response if enveloped else answer).id == "a"
    assert ("triton_final_response" in (answer.infer_response if enveloped else answer).parameters) is enveloped


async def test_a_shared_memory_region_is_tritons(start):
    serving = await start(answering(FakeModel()))
    message = request("a")
    message.inputs.add(name="x").parameters["shared_memory_region"].string_param = "r"
    call = stream(serving)
    await call.write(message)
    (answer,) = await rest(call)
    assert answer.infer_response.id == "a"


async def test_metadata_that_say_nothing_known(serving):
    call = stream(serving, (("x-stream-envelope", "else"),))
    await call.write(request("a"))
    with pytest.raises(grpc.aio.AioRpcError, match="neither triton nor mlserver") as failed:
        await call.read()
    assert failed.value.code() is StatusCode.INVALID_ARGUMENT


# MLServer's clients.


async def test_responses_without_an_envelope(start):
    serving = await start(answering(FakeModel(), respond_with("1", "2")))
    call = stream(serving, bare=True)
    await call.write(request("a"))
    messages = await rest(call)
    assert [(message.id, message.model_version) for message in messages] == [("a", "1"), ("a", "2")]
    assert all(not message.parameters for message in messages)


async def test_a_failure_ends_the_call(start):
    serving = await start(answering(FakeModel()))
    serving.registry.model.behave = lambda call: call.part(status=400, error="as it was told")
    call = stream(serving, bare=True)
    await call.write(request("a"))
    with pytest.raises(grpc.aio.AioRpcError, match="as it was told") as failed:
        await call.read()
    assert failed.value.code() is StatusCode.INVALID_ARGUMENT
    assert dict(failed.value.trailing_metadata() or ())["ts-error-cause"] == "handler_error"


async def test_a_failure_comes_after_what_was_asked_before(start):
    serving = await start(registry_of(FakeModel("slow"), FakeModel("bad")))
    slow, bad = serving.registry.registered
    slow.behave = later
    bad.behave = lambda call: call.part(status=400, error="as it was told")
    call = stream(serving, bare=True)
    await call.write(request("a", model="slow"))
    await call.write(request("b", model="bad"))
    await until(lambda: slow.calls and bad.calls)
    respond(slow.calls[0])
    assert (await call.read()).id == "a"
    with pytest.raises(grpc.aio.AioRpcError, match="as it was told"):
        await call.read()


@pytest.mark.parametrize("message", [request("a", model="other"), b"\xff\xff"])
async def test_a_first_request_that_cannot_be_read(serving, message):
    call = stream(serving, bare=True)
    await call.write(message)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() in (StatusCode.NOT_FOUND, StatusCode.INVALID_ARGUMENT)


async def test_a_model_that_takes_a_stream_gets_all_requests_in_one_job(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    model.declared = {"streams_in": True, "decoupled": True}
    call = stream(serving, bare=True)
    for id_ in ("a", "b", "c"):
        await call.write(request(id_))
    await call.done_writing()
    await until(lambda: len(model.inputs) == 3)
    (job,) = model.calls
    assert job.more_input
    assert ModelInferRequest.FromString(job.body).id == "a"
    assert [(more, ModelInferRequest.FromString(body).id) for more, body in model.inputs] == [
        (True, "b"),
        (True, "c"),
        (False, ""),
    ]
    job.part(response(job, "1"), more=True, headers=[("X-Mine", "1")])
    job.part(response(job, "2"))
    assert [message.model_version for message in await received(call)] == ["1", "2"]
    assert ("x-mine", "1") in [tuple(pair) for pair in await call.trailing_metadata()]


async def test_a_job_that_ends_ends_the_call(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    model.declared = {"streams_in": True}
    call = stream(serving, bare=True)
    await call.write(request("a"))
    await until(lambda: model.calls)
    respond(model.calls[0])
    assert (await call.read()).id == "a"
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is StatusCode.OK


async def test_a_client_that_leaves_cancels_the_one_job(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    model.declared = {"streams_in": True}
    call = stream(serving, bare=True)
    await call.write(request("a"))
    await until(lambda: model.calls)
    call.cancel()
    await model.cancelled.wait()


async def test_tritons_clients_have_a_job_for_each_request_of_such_a_model(start):
    serving = await start(answering(FakeModel()))
    model = serving.registry.model
    model.declared = {"streams_in": True, "decoupled": True}
    call = stream(serving)
    for id_ in ("a", "b"):
        await call.write(request(id_, raw=True))
    assert sorted(ids(await rest(call))) == ["a", "b"]
    assert [each.more_input for each in model.calls] == [False, False]
