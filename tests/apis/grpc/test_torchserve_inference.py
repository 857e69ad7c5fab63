"""Unary calls and streams of one request."""

import asyncio
import json
import re

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from grpc import StatusCode
from tests.apis.grpc.models import echo, later, refuse, registry_of, request, stateful_model
from tests.endpoints.fake_serving import FakeModel, Submitted

from torchserve_py.apis.grpc.protos import inference_pb2
from torchserve_py.base.causes import Cause

NO_WORKER = (
    'Model "noop" has no worker to serve inference request. Please use scale workers API to add workers. If this is a'
    " sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


async def failure(call):
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, 20)
    return caught.value


async def test_ping(serving):
    answer = await serving.inference.Ping(Empty())
    assert answer.health == '{\n  "status": "Healthy"\n}'
    serving.registry.is_healthy = False
    assert json.loads((await serving.inference.Ping(Empty())).health) == {"status": "Unhealthy"}


async def test_the_handler_gets_a_key_for_each_input_and_no_headers(serving):
    serving.registry.model.behave = lambda call: call.part(b"answer")
    answer = await serving.inference.Predictions(request(data=b"\xff", more=b"2"))
    assert answer.prediction == b"answer"
    assert not answer.HasField("sequence_id")
    assert not answer.HasField("status")
    (call,) = serving.registry.model.calls
    assert sorted(call.body) == [("data", "", b"\xff"), ("more", "", b"2")]
    assert call.content_type is None
    assert list(call.headers) == []
    assert call.by_default


async def test_a_version_can_be_named(start):
    serving = await start(registry_of(FakeModel(version="1.0"), FakeModel(version="2.0")))
    second = serving.registry.registered[1]
    second.behave = echo
    assert (await serving.inference.Predictions(request(version="2.0", data=b"x"))).prediction == b"x"
    assert not second.calls[0].by_default


async def test_what_a_handler_says_to_http_clients_is_ignored(serving):
    serving.registry.model.behave = lambda call: call.part(b"body", status=418, headers=[("a", "b")])
    assert (await serving.inference.Predictions(request(data=b""))).prediction == b"body"


@pytest.mark.parametrize("contract", ["sagemaker", "truss"])
@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_a_status_that_stands_for_an_exception_ends_the_call(start, contract, method):
    model = FakeModel()
    model.contract = contract
    serving = await start(registry_of(model))
    for status, reason, code, told in (
        (500, "", StatusCode.INTERNAL, "broken"),
        (400, "wrong type", StatusCode.INVALID_ARGUMENT, "wrong type"),
    ):
        model.behave = lambda call, status=status, reason=reason: call.part(b"broken", status=status, reason=reason)
        call = getattr(serving.inference, method)(request(data=b""))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [await call] if method == "Predictions" else [answer async for answer in call]
        assert (caught.value.code(), told in caught.value.details()) == (code, True)


async def test_parts_are_joined_in_a_unary_answer(serving):
    def stream(call: Submitted) -> None:
        for body in (b"one ", b"", b"two "):
            call.part(body, more=True)
        call.part(b"end")

    serving.registry.model.behave = stream
    assert (await serving.inference.Predictions(request(data=b""))).prediction == b"one two end"


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_a_request_of_a_stateful_model_without_an_id_opens_a_sequence(start, method):
    serving = await start(registry_of(stateful_model()))
    call = getattr(serving.inference, method)(request(data=b"1"))
    answers = [await call] if method == "Predictions" else [answer async for answer in call]
    (call,) = serving.registry.model.calls
    assert re.fullmatch(r"ts-seq-[0-9a-f-]{36}", call.sequence_id)
    assert call.starts_sequence
    assert call.header_dict == {"ts_request_sequence_id": call.sequence_id, "ts_request_sequence_start": "true"}
    assert [answer.sequence_id for answer in answers] == [call.sequence_id]


@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_a_call_ends_with_the_token_of_its_sequence(start, method):
    model = stateful_model()
    model.behave = lambda call: call.part(b"1", token="this one")
    serving = await start(registry_of(model))
    call = getattr(serving.inference, method)(request(data=b"1"))
    _ = [await call] if method == "Predictions" else [answer async for answer in call]
    assert dict(await call.trailing_metadata())["ts_sequence_token"] == "this one"


@pytest.mark.parametrize("place", ["metadata", "input"])
async def test_a_step_may_say_its_number_and_its_token(start, place):
    serving = await start(registry_of(stateful_model()))
    claim = {"ts_request_step": "3", "ts_request_sequence_token": "mine"}
    if place == "metadata":
        await serving.inference.Predictions(request("s1", data=b"1"), metadata=tuple(claim.items()))
    else:
        await serving.inference.Predictions(request("s1", data=b"1", **{key: claim[key].encode() for key in claim}))
    (call,) = serving.registry.model.calls
    assert (call.sequence_id, call.step, call.token) == ("s1", 3, "mine")


@pytest.mark.parametrize(
    ("entries", "metadata"),
    [({"ts_request_step": b"2"}, [("ts_request_step", "3")]), ({}, [("ts_request_step", each) for each in "23"])],
)
async def test_a_request_that_says_it_is_two_steps_is_refused(start, entries, metadata):
    serving = await start(registry_of(stateful_model()))
    error = await failure(serving.inference.Predictions(request("s1", data=b"1", **entries), metadata=metadata))
    assert "ts_request_step is given more than once, as '2' and '3'" in str(error.details())
    assert not serving.registry.model.calls


async def test_a_number_without_the_id_of_a_sequence_is_refused(start):
    """The id is a field of the message: metadata of its header's name do not name the sequence."""
    serving = await start(registry_of(stateful_model()))
    metadata = (("ts_request_sequence_id", "s1"), ("ts_request_step", "1"), ("ts_request_sequence_token", "mine"))
    error = await failure(serving.inference.Predictions(request(data=b"1"), metadata=metadata))
    assert "ts_request_sequence_id is missing: step 1 belongs to a sequence" in str(error.details())
    assert not serving.registry.model.calls


async def test_an_id_that_a_handler_would_end_as_several_is_refused(start):
    serving = await start(registry_of(stateful_model()))
    error = await failure(serving.inference.Predictions(request("zz;alice", data=b"1")))
    assert "'zz;alice' is not a sequence id; it must not hold ';'" in str(error.details())


async def test_an_id_that_is_no_text_is_refused(start):
    serving = await start(registry_of(stateful_model()))
    error = await failure(serving.inference.Predictions(request("s1", data=b"1", ts_request_id=b"\xff")))
    assert error.details() == "Input 'ts_request_id' is b'\\xff', which is not UTF-8.\nBadRequestException.()"


async def test_a_sequence_of_unary_requests(start):
    serving = await start(registry_of(stateful_model()))
    markers = [{"ts_request_sequence_start": b"true"}, {}, {"ts_request_sequence_end": b"true"}]
    for entries in markers:
        assert (await serving.inference.Predictions(request("s1", data=b"1", **entries))).sequence_id == "s1"
    calls = serving.registry.model.calls
    assert [(call.sequence_id, call.starts_sequence, call.ends_sequence) for call in calls] == [
        ("s1", True, False),
        ("s1", False, False),
        ("s1", False, True),
    ]
    assert calls[2].header_dict == {"ts_request_sequence_id": "s1", "ts_request_sequence_end": "true"}


@pytest.mark.parametrize(
    ("cause", "code", "description"),
    [
        (Cause.no_worker, StatusCode.INTERNAL, f"{NO_WORKER}\nInternalServerException.()"),
        (Cause.queue_full, StatusCode.INTERNAL, f"{NO_WORKER}\nInternalServerException.()"),
        (
            Cause.overloaded,
            StatusCode.INTERNAL,
            'Model "noop" is overloaded: it could not have answered the request within its time limit.'
            "\nInternalServerException.()",
        ),
        (
            Cause.worker_died,
            StatusCode.INTERNAL,
            "Worker died.\norg.pytorch.serve.http.InternalServerException",
        ),
        (
            Cause.draining,
            StatusCode.UNAVAILABLE,
            "The server is shutting down and accepts no new work.\norg.pytorch.serve.http.ServiceUnavailableException",
        ),
        (
            Cause.client_timeout,
            StatusCode.DEADLINE_EXCEEDED,
            "The request expired before a worker could run it.\norg.pytorch.serve.http.RequestTimeoutException",
        ),
    ],
)
@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_jobs_that_fail(serving, method, cause, code, description):
    serving.registry.model.behave = refuse(cause)
    call = getattr(serving.inference, method)(request(data=b""))
    error = await failure(call if method == "Predictions" else call.read())
    assert (error.code(), error.details()) == (code, description)
    assert dict(error.trailing_metadata())["ts-error-cause"] == cause.value


@pytest.mark.parametrize("cause", [Cause.sequence_expired, Cause.sequence_lost])
async def test_a_sequence_that_is_over(start, cause):
    serving = await start(registry_of(stateful_model()))
    serving.registry.model.behave = refuse(cause)
    error = await failure(serving.inference.Predictions(request("s1", data=b"")))
    assert error.code() is StatusCode.FAILED_PRECONDITION
    assert 'equence "s1" of model "noop"' in error.details()
    assert dict(error.trailing_metadata())["ts-error-cause"] == cause.value


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, StatusCode.INVALID_ARGUMENT),
        (401, StatusCode.UNAUTHENTICATED),
        (403, StatusCode.PERMISSION_DENIED),
        (404, StatusCode.NOT_FOUND),
        (409, StatusCode.ABORTED),
        (413, StatusCode.RESOURCE_EXHAUSTED),
        (416, StatusCode.OUT_OF_RANGE),
        (418, StatusCode.FAILED_PRECONDITION),
        (429, StatusCode.RESOURCE_EXHAUSTED),
        (499, StatusCode.CANCELLED),
        (500, StatusCode.INTERNAL),
        (501, StatusCode.UNIMPLEMENTED),
        (503, StatusCode.UNAVAILABLE),
        (504, StatusCode.DEADLINE_EXCEEDED),
        (507, StatusCode.INTERNAL),
        (302, StatusCode.UNKNOWN),
    ],
)
async def test_errors_of_handlers(serving, status, code):
    serving.registry.model.behave = lambda call: call.part(status=status, error="Prediction failed")
    error = await failure(serving.inference.Predictions(request(data=b"")))
    assert error.code() is code
    assert error.details() == "Prediction failed\norg.pytorch.serve.http.InternalServerException"
    told = "invalid_request" if 400 <= status < 500 else "handler_error"
    assert dict(error.trailing_metadata())["ts-error-cause"] == told


@pytest.mark.parametrize(
    ("model", "version", "description"),
    [
        ("", "", "Parameter model_name is required.\nBadRequestException.()"),
        ("foo", "", "Model not found: foo\norg.pytorch.serve.archive.model.ModelNotFoundException"),
        (
            "noop",
            "9",
            "Model version: 9 does not exist for model: noop\n"
            "org.pytorch.serve.archive.model.ModelVersionNotFoundException",
        ),
    ],
)
@pytest.mark.parametrize("method", ["Predictions", "StreamPredictions"])
async def test_requests_of_no_model(serving, method, model, version, description):
    call = getattr(serving.inference, method)(request(model=model, version=version))
    error = await failure(call if method == "Predictions" else call.read())
    assert (error.code(), error.details()) == (StatusCode.INTERNAL, description)


async def test_what_nobody_foresaw_is_an_internal_error(serving, caplog):
    def break_down(call: Submitted) -> None:
        raise ZeroDivisionError("by zero")

    serving.registry.model.behave = break_down
    error = await failure(serving.inference.Predictions(request(data=b"")))
    assert (error.code(), error.details()) == (StatusCode.INTERNAL, "by zero\nZeroDivisionError")
    assert "Predictions failed" in caplog.text


async def test_cancelling_a_call_cancels_its_job(serving):
    model = serving.registry.model
    model.behave = later
    call = serving.inference.Predictions(request(data=b""))
    async with asyncio.timeout(60):
        await model.submitted.wait()
        call.cancel()
        await model.cancelled.wait()


async def test_a_deadline_that_passes_cancels_the_job(serving):
    model = serving.registry.model
    model.behave = later
    error = await failure(serving.inference.Predictions(request(data=b""), timeout=0.2))
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(60):
        await model.cancelled.wait()


async def test_one_message_for_each_part_as_it_comes(serving):
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions(request(data=b""))
    async with asyncio.timeout(60):
        await model.submitted.wait()
        for body in (b"one", b"", b"three"):
            model.calls[0].part(body, more=True)
            assert (await call.read()).prediction == body
        model.calls[0].part(b"end")
        assert (await call.read()).prediction == b"end"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is StatusCode.OK


async def test_a_handler_that_does_not_stream_gives_a_stream_of_one(serving):
    serving.registry.model.behave = echo
    answers = [answer.prediction async for answer in serving.inference.StreamPredictions(request(data=b"x"))]
    assert answers == [b"x"]


async def test_an_error_inside_a_stream_ends_it(serving):
    def stream(call: Submitted) -> None:
        call.part(b"one", more=True)
        call.part(status=503, error="Prediction failed")

    serving.registry.model.behave = stream
    call = serving.inference.StreamPredictions(request(data=b""))
    assert (await call.read()).prediction == b"one"
    error = await failure(call.read())
    assert error.code() is StatusCode.UNAVAILABLE


async def test_a_client_that_stops_reading_is_given_up(start):
    serving = await start(default_response_timeout=1)
    model = serving.registry.model
    model.behave = later
    call = serving.inference.StreamPredictions(request(data=b""))
    async with asyncio.timeout(60):
        await model.submitted.wait()
        for _ in range(100):
            model.calls[0].part(bytes(100_000), more=True)
        await model.cancelled.wait()
    call.cancel()


async def test_entries_of_the_input_are_the_deadline_of_a_step(serving):
    serving.registry.model.behave = lambda call: call.part(b"x")
    entries = {"ts_request_deadline_ms": b"40", "ts_request_late": b"drop"}
    await serving.inference.Predictions(request(data=b"x", **entries))
    timing = serving.registry.model.calls[0].call.timing
    assert (timing.within, timing.drops, timing.period) == (0.04, True, None)
    error = await failure(serving.inference.Predictions(request(data=b"x", ts_request_degrade=b"true")))
    assert "ts_request_degrade needs" in error.details()


async def test_an_input_says_how_urgent_a_request_is(serving):
    serving.registry.model.behave = echo
    await serving.inference.Predictions(request(data=b"x", ts_request_priority=b"3"))
    assert serving.registry.model.calls[0].priority == 3
    error = await failure(serving.inference.Predictions(request(data=b"x", ts_request_priority=b"-3")))
    assert "Input ts_request_priority: '-3' is not a priority" in error.details()


async def test_a_request_of_very_many_entries_is_refused_before_they_are_read(serving):
    """They would keep all others waiting while they are read."""
    many = inference_pb2.PredictionsRequest(model_name="noop", input={str(number): b"" for number in range(10_001)})
    with pytest.raises(grpc.aio.AioRpcError, match="more than 10000 fields") as caught:
        await serving.inference.Predictions(many)
    assert caught.value.code() is StatusCode.INTERNAL
