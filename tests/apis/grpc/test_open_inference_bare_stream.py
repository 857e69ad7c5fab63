"""`ModelStreamInfer` as MLServer's clients use it, without an envelope; and how the server tells who has called."""

import asyncio

import grpc
import pytest
from grpc import StatusCode
from tests.apis.grpc.infer_streams import (
    MLSERVER,
    TRITON,
    answering,
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
from tests.apis.grpc.models import later, registry_of
from tests.endpoints.fake_serving import FakeModel

from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest

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


async def test_a_response_does_not_wait_for_the_next_one(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    call = stream(serving, bare=True)
    await call.write(request("a"))
    await until(lambda: model.calls)
    model.calls[0].part(response(model.calls[0], "1"), more=True)
    assert (await call.read()).model_version == "1"
    model.calls[0].part(b"")
    assert await rest(call) == []


async def test_a_failure_ends_the_call(start):
    serving = await start(answering(FakeModel()))
    serving.registry.model.behave = lambda call: call.part(status=400, error="as it was told")
    call = stream(serving, bare=True)
    await call.write(request("a"))
    with pytest.raises(grpc.aio.AioRpcError, match="as it was told") as failed:
        await call.read()
    assert failed.value.code() is StatusCode.INVALID_ARGUMENT
    assert dict(failed.value.trailing_metadata() or ())["ts-error-cause"] == "invalid_request"


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


async def test_a_client_that_leaves_cancels_the_one_job(start, caplog):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    model.declared = {"streams_in": True}
    call = stream(serving, bare=True)
    await call.write(request("a"))
    await until(lambda: model.calls)
    call.cancel()
    await model.cancelled.wait()
    await serving.endpoints.close()
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_a_server_that_stops_ends_the_requests_of_the_one_job(start):
    serving = await start(answering(FakeModel(), later))
    model = serving.registry.model
    model.declared = {"streams_in": True}
    call = stream(serving, bare=True)
    await call.write(request("a"))
    await until(lambda: model.calls)
    closing = asyncio.create_task(serving.endpoints.close())
    await until(lambda: model.inputs == [(False, b"")])
    respond(model.calls[0])
    assert (await call.read()).id == "a"
    assert await call.code() is StatusCode.UNAVAILABLE
    await closing


async def test_tritons_clients_have_a_job_for_each_request_of_such_a_model(start):
    serving = await start(answering(FakeModel()))
    model = serving.registry.model
    model.declared = {"streams_in": True, "decoupled": True}
    call = stream(serving)
    for id_ in ("a", "b"):
        await call.write(request(id_, raw=True))
    assert sorted(ids(await rest(call))) == ["a", "b"]
    assert [each.more_input for each in model.calls] == [False, False]
