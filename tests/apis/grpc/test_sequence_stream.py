"""`StreamPredictions2`: sequences over one call."""

import asyncio
import re

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc import StatusCode
from tests.apis.grpc.infer_streams import until
from tests.apis.grpc.models import data, echo, later, refuse, registry_of, request, stateful_model

from torchserve_py.base.causes import Cause


def reason(response):
    info = ErrorInfo()
    (detail,) = response.status.details
    assert detail.Unpack(info)
    return info.reason


async def test_a_conversation(start):
    serving = await start(registry_of(stateful_model()))
    call = serving.inference.StreamPredictions2()
    for text in (b"1", b"2", b"3"):
        await call.write(request("a", data=text))
        answer = await call.read()
        assert (answer.prediction, answer.sequence_id) == (text, "a")
        assert not answer.HasField("status")
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is StatusCode.OK
    calls = serving.registry.model.calls
    assert [each.header_dict for each in calls] == [{"ts_request_sequence_id": "a"}] * 3
    assert not any(each.starts_sequence or each.ends_sequence for each in calls)


async def test_markers_start_and_end_a_sequence(start):
    serving = await start(registry_of(stateful_model()))
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"", ts_request_sequence_start=b"true"))
    await call.write(request("a", data=b"", ts_request_sequence_end=b"true"))
    await call.done_writing()
    assert len([answer async for answer in call]) == 2
    calls = serving.registry.model.calls
    assert [(each.starts_sequence, each.ends_sequence) for each in calls] == [(True, False), (False, True)]


async def test_a_start_marker_without_an_id_gets_one(start):
    serving = await start(registry_of(stateful_model()))
    call = serving.inference.StreamPredictions2()
    await call.write(request(data=b"1", ts_request_sequence_start=b"true"))
    answer = await call.read()
    assert re.fullmatch(r"ts-seq-[0-9a-f-]{36}", answer.sequence_id)
    assert serving.registry.model.calls[0].sequence_id == answer.sequence_id


async def test_sequences_do_not_wait_for_each_other(start):
    serving = await start(registry_of(stateful_model()))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    await call.write(request("slow", data=b"1"))
    await call.write(request("fast", data=b"2"))
    await until(lambda: len(model.calls) == 2)
    model.calls[1].part(b"fast")
    assert (await call.read()).sequence_id == "fast"
    model.calls[0].part(b"slow")
    assert (await call.read()).sequence_id == "slow"


async def test_new_sequences_without_ids_do_not_wait_for_each_other(start):
    serving = await start(registry_of(stateful_model()))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    for text in (b"slow", b"fast"):
        await call.write(request(data=text, ts_request_sequence_start=b"TRUE"))
    await until(lambda: len(model.calls) == 2)
    slow, fast = model.calls
    assert slow.sequence_id != fast.sequence_id
    assert fast.header_dict["ts_request_sequence_start"] == "true"
    for each in (fast, slow):
        each.part(data(each))
        answer = await call.read()
        assert (answer.prediction, answer.sequence_id) == (data(each), each.sequence_id)


async def test_a_new_sequence_without_an_id_is_answered_in_order_under_the_id_that_it_gets(start):
    serving = await start(registry_of(stateful_model(queue_size=2)))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    await call.write(request(data=b"1", ts_request_sequence_start=b"true"))
    await until(lambda: model.calls)
    model.calls[0].part(b"first", more=True)
    sequence_id = (await call.read()).sequence_id
    await call.write(request(sequence_id, data=b"2"))
    await until(lambda: len(model.calls) == 2)
    model.calls[1].part(b"second")
    model.calls[0].part(b"first, the rest")
    await call.done_writing()
    assert [(await call.read()).prediction for _ in range(2)] == [b"first, the rest", b"second"]


async def test_a_half_close_finishes_what_is_pending(start):
    serving = await start(registry_of(stateful_model()))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    for text in (b"1", b"2"):
        await call.write(request("a", data=text))
    await call.done_writing()
    await until(lambda: model.calls)
    model.behave = echo
    model.calls[0].part(b"1")
    assert [answer.prediction async for answer in call] == [b"1", b"2"]
    assert await call.code() is StatusCode.OK


async def test_no_more_of_a_sequence_is_submitted_than_its_queue_takes(start):
    serving = await start(registry_of(stateful_model(queue_size=2)))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    for number in range(5):
        await call.write(request("a", data=b"%d" % number))
    await call.write(request("b", data=b"b"))
    await until(lambda: len(model.calls) == 3)
    assert [each.sequence_id for each in model.calls] == ["a", "a", "b"]
    model.calls[0].part(b"0")
    assert (await call.read()).prediction == b"0"
    await until(lambda: len(model.calls) == 4)
    assert data(model.calls[3]) == b"2"


async def test_reading_stops_while_too_much_is_unanswered(serving):
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await call.write(request("a", data=bytes(50_000)))
            written += 1

    writing = asyncio.create_task(write())
    await until(lambda: len(model.calls) == 64)
    done, _ = await asyncio.wait([writing], timeout=0.5)
    assert not done
    assert len(model.calls) == 64
    model.calls[0].part(b"")
    await call.read()
    await until(lambda: len(model.calls) == 65)
    writing.cancel()


async def test_large_requests_stop_it_sooner(start):
    serving = await start(max_request_size=100_000)
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    for _ in range(4):
        await call.write(request("a", data=bytes(99_000)))
    extra = asyncio.create_task(call.write(request("a", data=bytes(99_000))))
    await until(lambda: len(model.calls) >= 4)
    model.calls[0].part(b"")
    await call.read()
    await extra
    await until(lambda: len(model.calls) == 5)


@pytest.mark.parametrize(
    ("sent", "message", "expected"),
    [
        (request(data=b""), "Parameter sequenceId is required.", "BadRequestException.()"),
        (request("a", model=""), "Parameter model_name is required.", "BadRequestException.()"),
        (
            request("a", model="foo"),
            "Model not found: foo",
            "org.pytorch.serve.archive.model.ModelNotFoundException",
        ),
        (
            request("a", version="9"),
            "Model version: 9 does not exist for model: noop",
            "org.pytorch.serve.archive.model.ModelVersionNotFoundException",
        ),
    ],
)
async def test_a_request_that_is_wrong_is_answered_and_the_call_goes_on(start, sent, message, expected):
    serving = await start(registry_of(stateful_model()))
    call = serving.inference.StreamPredictions2()
    await call.write(sent)
    answer = await call.read()
    assert (answer.status.code, answer.status.message) == (StatusCode.INTERNAL.value[0], message)
    assert reason(answer) == expected
    assert answer.prediction == b""
    assert answer.sequence_id == sent.sequence_id
    await call.write(request("a", data=b"next"))
    assert (await call.read()).prediction == b"next"


async def test_a_handler_error_is_answered_and_the_call_goes_on(start):
    serving = await start(registry_of(stateful_model()))
    model = serving.registry.model
    model.behave = lambda job: job.part(status=503, error="Prediction failed")
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"1"))
    answer = await call.read()
    assert (answer.status.code, answer.status.message) == (StatusCode.UNAVAILABLE.value[0], "Prediction failed")
    assert reason(answer) == "org.pytorch.serve.http.InternalServerException"
    model.behave = echo
    await call.write(request("a", data=b"2"))
    assert (await call.read()).prediction == b"2"


async def test_the_cause_is_in_the_details(start):
    serving = await start(registry_of(stateful_model()))
    serving.registry.model.behave = refuse(Cause.sequence_lost)
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"1"))
    answer = await call.read()
    info = ErrorInfo()
    answer.status.details[0].Unpack(info)
    assert info.metadata["ts-error-cause"] == "sequence_lost"
    assert answer.status.code == StatusCode.FAILED_PRECONDITION.value[0]


async def test_a_refusal_does_not_overtake_an_earlier_request_of_its_sequence(start):
    serving = await start(registry_of(stateful_model(queue_size=2)))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"1"))
    await until(lambda: model.calls)
    model.behave = refuse(Cause.sequence_queue_full)
    await call.write(request("a", data=b"2"))
    await until(lambda: len(model.calls) == 2)
    model.calls[0].part(b"1")
    assert (await call.read()).prediction == b"1"
    assert (await call.read()).HasField("status")


async def test_every_part_is_a_message(start):
    serving = await start(registry_of(stateful_model()))

    def stream(call):
        call.part(b"1", more=True)
        call.part(b"2", more=True)
        call.part(b"3")

    serving.registry.model.behave = stream
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b""))
    await call.done_writing()
    assert [(answer.prediction, answer.sequence_id) async for answer in call] == [
        (b"1", "a"),
        (b"2", "a"),
        (b"3", "a"),
    ]


async def test_with_continuous_batching_a_request_joins_one_that_streams(start):
    serving = await start(registry_of(stateful_model(continuous=True)))
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"stream"))
    await until(lambda: model.calls)
    model.calls[0].part(b"one", more=True)
    assert (await call.read()).prediction == b"one"
    model.behave = echo
    await call.write(request("a", data=b"stop"))
    assert (await call.read()).prediction == b"stop"
    model.calls[0].part(b"end")
    assert (await call.read()).prediction == b"end"


async def test_cancelling_the_call_cancels_all_its_jobs(start):
    serving = await start(registry_of(stateful_model()))
    model = serving.registry.model
    model.behave = later
    gave_up = []
    model.gave_up = gave_up.append
    call = serving.inference.StreamPredictions2()
    for sequence_id in ("a", "a", "b", "c"):
        await call.write(request(sequence_id, data=b""))
    await until(lambda: len(model.calls) == 3)
    model.calls[0].part(b"done")
    await until(lambda: len(model.calls) == 4)
    call.cancel()
    await until(lambda: len(gave_up) >= 3)
    assert set(gave_up) == {each.call for each in model.calls[1:]}


async def test_closing_the_endpoints_ends_a_call_that_waits_for_its_client(start):
    serving = await start(registry_of(stateful_model()))
    call = serving.inference.StreamPredictions2()
    await call.write(request("a", data=b"1"))
    assert (await call.read()).prediction == b"1"
    await serving.endpoints.close()
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert await call.code() is StatusCode.UNAVAILABLE
    assert dict(await call.trailing_metadata())["ts-error-cause"] == "draining"
