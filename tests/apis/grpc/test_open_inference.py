"""The Open Inference service: its unary methods, under all of its names."""

import json
from pathlib import Path

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.apis.grpc.models import refuse, registry_of
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.grpc.protos import open_inference_pb2 as messages
from torchserve_py.apis.grpc.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from torchserve_py.apis.grpc.protos.open_inference_repository_pb2_grpc import ModelRepositoryServiceStub
from torchserve_py.apis.grpc.protos.open_inference_torchserve_pb2_grpc import (
    GRPCInferenceServiceStub as TorchServeStub,
)
from torchserve_py.base.causes import Cause
from torchserve_py.ops.keys.generated_keys import GeneratedKeys
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse


def infer_request(model: str = "noop", **more) -> ModelInferRequest:
    return ModelInferRequest(model_name=model, **more)


def answer(call: Submitted) -> None:
    """What a worker does: it reads the request, and answers in the same form."""
    request = ModelInferRequest.FromString(call.body)
    response = ModelInferResponse(model_name=request.model_name, id=request.id)
    response.raw_output_contents.extend(request.raw_input_contents)
    call.part(response.SerializeToString())


def answering(model: FakeModel) -> FakeServing:
    model.behave = answer
    return registry_of(model)


def stub(serving) -> GRPCInferenceServiceStub:
    return GRPCInferenceServiceStub(serving.inference_channel)


async def failure(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value


def cause(error: grpc.aio.AioRpcError) -> str | None:
    return dict(error.trailing_metadata() or ()).get("ts-error-cause")


async def test_the_bytes_of_request_and_response_are_passed_on(start):
    serving = await start(answering(FakeModel()))
    request = infer_request(id="7", raw_input_contents=[bytes(range(256))])
    response = await stub(serving).ModelInfer(request, metadata=(("x-mine", "1"), ("y-bin", b"\xff")))
    assert response == ModelInferResponse(model_name="noop", id="7", raw_output_contents=[bytes(range(256))])
    (call,) = serving.registry.model.calls
    assert ModelInferRequest.FromString(call.body) == request
    assert call.protocol == "open_inference_grpc"
    assert call.by_default
    assert ("x-mine", "1") in [tuple(pair) for pair in call.headers]
    assert ("y-bin", b"\xff") in [tuple(pair) for pair in call.headers]


async def test_a_version_is_found_by_its_name(start):
    serving = await start(registry_of(FakeModel("a", "1.0"), FakeModel("a", "2.0")))
    for model in serving.registry.registered:
        model.behave = answer
    await stub(serving).ModelInfer(infer_request("a", model_version="2.0"))
    (call,) = serving.registry.registered[1].calls
    assert not call.by_default
    assert not serving.registry.registered[0].calls


async def test_headers_of_a_last_part_without_a_response_become_trailing_metadata(start):
    def behave(call: Submitted) -> None:
        call.part(ModelInferResponse(model_name="noop").SerializeToString(), more=True, headers=[("x-early", "1")])
        call.part(headers=[("x-early", "1"), ("x-late", "2")])

    serving = await start()
    serving.registry.model.behave = behave
    call = stub(serving).ModelInfer(infer_request())
    await call
    assert [tuple(pair) for pair in await call.trailing_metadata()] == [("x-early", "1"), ("x-late", "2")]


async def test_headers_become_trailing_metadata(start):
    def behave(call: Submitted) -> None:
        headers = [("X-Answer", "42"), ("content-type", "application/json"), ("Bad Name", "x"), ("x-bad", "é\n")]
        call.part(ModelInferResponse(model_name="noop").SerializeToString(), headers=headers)

    serving = await start()
    serving.registry.model.behave = behave
    call = stub(serving).ModelInfer(infer_request())
    await call
    assert [tuple(pair) for pair in await call.trailing_metadata()] == [("x-answer", "42")]


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (infer_request("other"), StatusCode.NOT_FOUND, "Model not found: other"),
        (infer_request(model_version="9"), StatusCode.NOT_FOUND, "9"),
        (infer_request(""), StatusCode.INVALID_ARGUMENT, "no model_name"),
        (infer_request(parameters={"timeout": {"string_param": "1"}}), StatusCode.INVALID_ARGUMENT, "timeout"),
        (infer_request(parameters={"timeout": {"int64_param": -1}}), StatusCode.INVALID_ARGUMENT, "timeout"),
        (infer_request(parameters={"priority": {"int64_param": -1}}), StatusCode.INVALID_ARGUMENT, "priority: -1"),
        (infer_request(parameters={"priority": {"bool_param": True}}), StatusCode.INVALID_ARGUMENT, "priority: True"),
    ],
)
async def test_what_is_refused(serving, request_, code, says):
    error = await failure(stub(serving).ModelInfer(request_))
    assert error.code() is code
    assert says in error.details()
    assert "\n" not in error.details()  # nothing of TorchServe's second line
    assert not serving.registry.model.calls


async def test_bytes_that_are_no_message(serving):
    call = serving.inference_channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    error = await failure(call(b"\xff\xff"))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "no inference.ModelInferRequest" in error.details()


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (Cause.no_worker, StatusCode.UNAVAILABLE),
        (Cause.queue_full, StatusCode.UNAVAILABLE),
        (Cause.overloaded, StatusCode.UNAVAILABLE),
        (Cause.draining, StatusCode.UNAVAILABLE),
        (Cause.worker_died, StatusCode.UNAVAILABLE),
        (Cause.outcome_unknown, StatusCode.UNAVAILABLE),
        (Cause.response_timeout, StatusCode.DEADLINE_EXCEEDED),
        (Cause.client_timeout, StatusCode.DEADLINE_EXCEEDED),
        (Cause.sequence_expired, StatusCode.FAILED_PRECONDITION),
        (Cause.sequence_lost, StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_jobs_that_end_without_an_answer(serving, why, code):
    serving.registry.model.behave = refuse(why)
    error = await failure(stub(serving).ModelInfer(infer_request()))
    assert (error.code(), cause(error)) == (code, why.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, StatusCode.INVALID_ARGUMENT),
        (404, StatusCode.NOT_FOUND),
        (422, StatusCode.INVALID_ARGUMENT),
        (429, StatusCode.RESOURCE_EXHAUSTED),
        (500, StatusCode.INTERNAL),
        (501, StatusCode.UNIMPLEMENTED),
        (503, StatusCode.INTERNAL),
        (507, StatusCode.INTERNAL),
    ],
)
async def test_errors_of_the_model(serving, status, code):
    serving.registry.model.behave = lambda call: call.part(status=status, error="as it was told")
    error = await failure(stub(serving).ModelInfer(infer_request()))
    told = "invalid_request" if status < 500 else "handler_error"
    assert (error.code(), error.details(), cause(error)) == (code, "as it was told", told)


async def test_a_timeout_is_how_long_a_request_may_wait(start):
    serving = await start(answering(FakeModel()))
    await stub(serving).ModelInfer(infer_request(parameters={"timeout": {"int64_param": 2_500_000}}))
    await stub(serving).ModelInfer(infer_request(parameters={"timeout": {"int64_param": 0}}))
    assert [call.expires_in for call in serving.registry.model.calls] == [2.5, None]


async def test_the_deadline_of_a_call_is_how_long_its_client_waits(start):
    serving = await start(answering(FakeModel()))
    await stub(serving).ModelInfer(infer_request(), timeout=5)
    await stub(serving).ModelInfer(infer_request())
    waits, for_ever = [call.answer_in for call in serving.registry.model.calls]
    assert 0 < waits < 5.1, "gRPC rounds a time limit up"
    assert for_ever is None


async def test_a_parameter_is_the_deadline_of_a_step(start):
    serving = await start(answering(FakeModel()))
    parameters = {"ts_request_period_ms": {"int64_param": 20}, "ts_request_degrade": {"bool_param": True}}
    await stub(serving).ModelInfer(infer_request(parameters=parameters))
    timing = serving.registry.model.calls[0].call.timing
    assert (timing.within, timing.period, timing.drops, timing.degrades) == (0.02, 0.02, False, True)
    error = await failure(stub(serving).ModelInfer(infer_request(parameters={"ts_request_late": text("drop")})))
    assert (error.code(), "ts_request_late needs" in error.details()) == (StatusCode.INVALID_ARGUMENT, True)


def text(value):
    return {"string_param": value}


async def test_a_priority_is_how_urgent_a_request_is(start):
    serving = await start(answering(FakeModel()))
    for value in ({"uint64_param": 2**64 - 1}, {"int64_param": 1}, {"int64_param": 0}, {}):
        await stub(serving).ModelInfer(infer_request(parameters={"priority": value}))
    assert [call.priority for call in serving.registry.model.calls] == [2**64 - 1, 1, 0, 0]


@pytest.mark.parametrize("bodies", [[b""], [b"a", b"b"], [b"a", b"b", b""]])
async def test_other_than_one_response_is_refused(serving, bodies):
    def behave(call: Submitted) -> None:
        for number, body in enumerate(bodies, 1):
            call.part(body, more=number < len(bodies))

    serving.registry.model.behave = behave
    error = await failure(stub(serving).ModelInfer(infer_request()))
    assert error.code() is StatusCode.UNIMPLEMENTED
    assert "ModelStreamInfer" in error.details()


async def test_one_response_of_a_model_that_streams(serving):
    def behave(call: Submitted) -> None:
        call.part(ModelInferResponse(model_name="noop", id="only").SerializeToString(), more=True)
        call.part()

    serving.registry.model.behave = behave
    assert (await stub(serving).ModelInfer(infer_request())).id == "only"


async def test_a_call_that_is_cancelled_cancels_its_job(serving):
    model = serving.registry.model
    model.behave = lambda call: None
    call = stub(serving).ModelInfer(infer_request())
    await model.submitted.wait()
    call.cancel()
    await model.cancelled.wait()


async def test_a_deadline_that_passes_cancels_the_job(serving):
    model = serving.registry.model
    model.behave = lambda call: None
    error = await failure(stub(serving).ModelInfer(infer_request(), timeout=0.2))
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    await model.cancelled.wait()


async def test_a_request_of_a_sequence(start):
    serving = await start(answering(FakeModel(stateful=True)))
    markers = {"sequence_start": {"bool_param": True}, "sequence_end": {"bool_param": False}}
    for sequence_id in ({"int64_param": -1}, {"uint64_param": 2**64 - 1}, {"string_param": "a"}):
        await stub(serving).ModelInfer(infer_request(parameters={"sequence_id": sequence_id, **markers}))
    calls = serving.registry.model.calls
    assert [call.sequence_id for call in calls] == [str(2**64 - 1), str(2**64 - 1), "a"]
    assert all(call.starts_sequence and not call.ends_sequence for call in calls)
    assert calls[2].header_dict["ts_request_sequence_id"] == "a"
    assert calls[2].header_dict["ts_request_sequence_start"] == "true"
    error = await failure(stub(serving).ModelInfer(infer_request()))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "correlation ID" in error.details()


async def test_metadata_that_names_two_sequences_is_refused(start):
    serving = await start(answering(FakeModel(stateful=True)))
    metadata = (("ts_request_sequence_id", "one"), ("ts_request_sequence_id", "two"))
    error = await failure(stub(serving).ModelInfer(infer_request(), metadata=metadata))
    assert error.code() is StatusCode.INVALID_ARGUMENT
    assert "ts_request_sequence_id is given more than once, as 'one' and 'two'" in error.details()
    twice = (*metadata[:1], ("ts_request_step", "1"), ("ts_request_step", "2"))
    error = await failure(stub(serving).ModelInfer(infer_request(), metadata=twice))
    assert (error.code(), "ts_request_step is given more than once" in error.details()) == (
        StatusCode.INVALID_ARGUMENT,
        True,
    )
    await stub(serving).ModelInfer(infer_request(), metadata=(*metadata[:1], ("x-mine", "1"), ("x-mine", "2")))
    assert serving.registry.model.calls[-1].sequence_id == "one"


async def test_other_models_get_the_keys_of_sequences_untouched(start):
    serving = await start(answering(FakeModel()))
    request = infer_request(parameters={"sequence_id": {"double_param": 1.5}, "sequence_start": {"int64_param": 1}})
    await stub(serving).ModelInfer(request)
    (call,) = serving.registry.model.calls
    assert call.sequence_id is None
    assert ModelInferRequest.FromString(call.body) == request


async def test_health_and_metadata(serving):
    client = stub(serving)
    assert (await client.ServerLive(messages.ServerLiveRequest())).live
    assert (await client.ServerReady(messages.ServerReadyRequest())).ready
    assert (await client.ModelReady(messages.ModelReadyRequest(name="noop"))).ready
    metadata = await client.ServerMetadata(messages.ServerMetadataRequest())
    assert metadata.name == "torchserve-py"
    assert "statistics" in metadata.extensions
    for call in (
        client.ModelReady(messages.ModelReadyRequest(name="other")),
        client.ModelMetadata(messages.ModelMetadataRequest(name="other")),
        client.ModelConfig(messages.ModelConfigRequest(name="noop", version="9")),
        client.ModelStatistics(messages.ModelStatisticsRequest(name="other")),
    ):
        assert (await failure(call)).code() is StatusCode.NOT_FOUND
    serving.registry.is_startup_ready = False
    assert not (await client.ServerReady(messages.ServerReadyRequest())).ready


async def test_what_a_model_declares(serving):
    serving.registry.model.declared = {
        "platform": "mine",
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [-1, 2], "parameters": {"content_type": "str"}}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
        "max_batch_size": 8,
        "max_batch_time": 0.5,
        "decoupled": True,
    }
    client = stub(serving)
    metadata = await client.ModelMetadata(messages.ModelMetadataRequest(name="noop"))
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("noop", ["1.0"], "mine")
    (tensor,) = metadata.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "BYTES", [-1, 2])
    assert tensor.parameters["content_type"].string_param == "str"
    assert not metadata.parameters
    config = (await client.ModelConfig(messages.ModelConfigRequest(name="noop"))).config
    assert (config.name, config.max_batch_size, config.platform) == ("noop", 8, "mine")
    assert [list(each.dims) for each in (*config.input, *config.output)] == [[2], []]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500_000
    assert config.model_transaction_policy.decoupled


async def test_statistics(start):
    serving = await start(registry_of(FakeModel("a", "1.0"), FakeModel("b", "3")))
    response = await stub(serving).ModelStatistics(messages.ModelStatisticsRequest())
    assert [(each.name, each.version) for each in response.model_stats] == [("a", "1.0"), ("b", "3")]
    (one,) = (await stub(serving).ModelStatistics(messages.ModelStatisticsRequest(name="b"))).model_stats
    assert one.inference_stats.success.count == 0
    assert one.HasField("inference_stats")


@pytest.mark.parametrize(
    "method",
    [
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    ],
)
async def test_what_there_is_not(serving, method):
    request = getattr(messages, f"{method}Request")()
    error = await failure(getattr(stub(serving), method)(request))
    assert error.code() is StatusCode.UNIMPLEMENTED
    assert error.details()


async def test_other_names_of_the_service(start):
    serving = await start(answering(FakeModel()), enable_model_api=True)
    torchserves = TorchServeStub(serving.inference_channel)
    assert (await torchserves.ServerReady(messages.ServerReadyRequest())).ready
    assert (await torchserves.ModelInfer(infer_request(id="7"))).id == "7"
    repository = ModelRepositoryServiceStub(serving.inference_channel)
    error = await failure(repository.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(model_name="other")))
    assert error.code() is StatusCode.NOT_FOUND


async def test_health_of_the_service(serving):
    client = health_pb2_grpc.HealthStub(serving.inference_channel)
    for name in ("", "inference.GRPCInferenceService", "org.pytorch.serve.grpc.openinference.GRPCInferenceService"):
        response = await client.Check(health_pb2.HealthCheckRequest(service=name))
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    serving.endpoints.context.start_draining()
    response = await client.Check(health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"))
    assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert not (await stub(serving).ServerReady(messages.ServerReadyRequest())).ready


async def test_tokens(start, tmp_path: Path):
    key_file = tmp_path / "key_file.json"
    serving = await start(answering(FakeModel()), GeneratedKeys(key_file, 60), enable_model_api=True)
    keys = json.loads(key_file.read_text())
    inference, management = (
        (("authorization", f"Bearer {keys[name]['key']}"),) for name in ("inference", "management")
    )
    client = stub(serving)
    assert (await failure(client.ModelInfer(infer_request()))).code() is StatusCode.PERMISSION_DENIED
    await client.ModelInfer(infer_request(), metadata=inference)
    for method in ("Load", "Unload"):
        call = getattr(client, f"RepositoryModel{method}")
        request = getattr(messages, f"RepositoryModel{method}Request")(model_name="other")
        assert (await failure(call(request, metadata=inference))).code() is StatusCode.PERMISSION_DENIED
    assert (await failure(call(request, metadata=management))).code() is StatusCode.NOT_FOUND


async def test_models_are_loaded_only_where_that_is_allowed(start):
    serving = await start(enable_model_api=False)
    error = await failure(stub(serving).RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="noop")))
    assert (error.code(), cause(error)) == (StatusCode.PERMISSION_DENIED, "model_api_disabled")
    assert "enable_model_api" in error.details()


async def test_metadata_may_name_a_sequence(start):
    serving = await start(answering(FakeModel(stateful=True)))
    metadata = (("ts_request_sequence_id", "a"), ("ts_request_sequence_end", "true"))
    await stub(serving).ModelInfer(infer_request(), metadata=metadata)
    (call,) = serving.registry.model.calls
    assert (call.sequence_id, call.starts_sequence, call.ends_sequence) == ("a", False, True)
    markers = {"sequence_id": {"string_param": "b"}, "sequence_start": {"bool_param": True}}
    await stub(serving).ModelInfer(infer_request(parameters=markers), metadata=metadata)
    assert serving.registry.model.calls[1].sequence_id == "b"


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, None),
        ({"max_request_size": 100_000}, "vs. 100000), which max_request_size sets"),
        ({"grpc_max_message_length": 200_000}, "vs. 200000), which grpc_max_message_length sets"),
        ({"grpc_max_message_length": 9_000_000, "max_request_size": 100_000}, None),
    ],
)
async def test_messages_with_tensors_have_no_limit_unless_one_is_set(start, settings, refused):
    serving = await start(**settings)
    serving.registry.model.behave = lambda call: call.part(ModelInferResponse(id="1").SerializeToString())
    request = infer_request(raw_input_contents=[bytes(8_000_000)])  # more than TorchServe's default allows
    for name in ("inference", "org.pytorch.serve.grpc.openinference"):
        call = serving.inference_channel.unary_unary(f"/{name}.GRPCInferenceService/ModelInfer")
        if refused is None:
            await call(request.SerializeToString())
            assert len(serving.registry.model.calls[-1].body) > 8_000_000
        else:
            error = await failure(call(request.SerializeToString()))
            assert (error.code(), refused in error.details()) == (StatusCode.RESOURCE_EXHAUSTED, True)
    other = serving.inference_channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
    assert (await failure(other(bytes(8_000_000)))).code() is StatusCode.RESOURCE_EXHAUSTED
