"""What the servers do besides their services: addresses, tokens, TLS, health, reflection, limits, the access log."""

import asyncio
import json
import logging
import re
import socket

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.empty_pb2 import Empty
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.apis.grpc.models import echo, later, request
from tests.net.http2.raw_client import HEADERS, RawClient, frame

from torchserve_py.apis.grpc.protos import inference_pb2, management_pb2
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.binding import ListenError
from torchserve_py.net.http2 import frames
from torchserve_py.ops.keys.generated_keys import GeneratedKeys
from torchserve_py.ops.tls.tls import TlsError

INFERENCE = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_every_address_of_a_host_name_is_listened_at(start, monkeypatch):
    hosts, resolve = ["127.0.0.1", "127.0.0.2"], socket.getaddrinfo

    def two(host, port, *more, **options):
        return [each for known in hosts for each in resolve(known, port, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    serving = await start(grpc_inference_address="models.example", grpc_management_address="models.example")
    monkeypatch.undo()
    port = serving.endpoints.addresses["grpc_inference_port"].port
    for host in hosts:
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=180)).status == SERVING


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_every_ipv6_address_takes_ipv4_too(start):
    serving = await start(grpc_inference_address="::")
    port = serving.endpoints.addresses["grpc_inference_port"].port
    for host in ("127.0.0.1", "::1"):
        _, writer = await asyncio.open_connection(host, port)
        writer.close()


async def test_a_port_in_use(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"grpc_management_port: .*127\.0\.0\.1:{port}: Address already in use"):
            await start(grpc_management_port=port)


async def test_a_port_that_another_server_uses(start):
    first = await start()
    port = first.endpoints.addresses["grpc_inference_port"].port
    with pytest.raises(ListenError, match="grpc_inference_port"):
        await start(grpc_inference_port=port)


@pytest.mark.parametrize("missing", ["private_key_file", "certificate_file"])
async def test_tls_needs_both_files(start, tmp_path, missing):
    files = {"private_key_file": tmp_path / "key", "certificate_file": tmp_path / "certificate"}
    for each in files.values():
        each.write_text("")
    with pytest.raises(TlsError, match="enable_grpc_ssl is true: private_key_file and certificate_file must be set"):
        await start(enable_grpc_ssl=True, **{**files, missing: None})
    with pytest.raises(TlsError, match=f"{missing} .*none cannot be read"):
        await start(enable_grpc_ssl=True, **{**files, missing: tmp_path / "none"})


async def test_tls_files_that_are_none(start, tmp_path):
    file = tmp_path / "pem"
    file.write_text("no PEM")
    with pytest.raises(TlsError, match="private_key_file"):
        await start(enable_grpc_ssl=True, private_key_file=file, certificate_file=file)


async def test_a_token_opens_its_service_only(start, tmp_path):
    key_file = tmp_path / "key_file.json"
    serving = await start(tokens=GeneratedKeys(key_file, 60))
    keys = {name: each["key"] for name, each in json.loads(key_file.read_text()).items()}

    def bearer(name):
        return {"metadata": (("authorization", f"Bearer {keys[name]}"),)}

    calls = {
        "inference": lambda **more: serving.inference.Ping(Empty(), **more),
        "management": lambda **more: serving.management.ListModels(management_pb2.ListModelsRequest(), **more),
    }
    for name, call in calls.items():
        await call(**bearer(name))
        other = "management" if name == "inference" else "inference"
        for wrong in ({}, bearer(other), bearer("API"), {"metadata": (("authorization", keys[name]),)}):
            error = await failure(call(**wrong))
            assert error.code() is StatusCode.PERMISSION_DENIED
            assert error.details() == (
                "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
            )


async def test_a_call_without_the_token_is_refused_before_its_body_is_there(start, tmp_path):
    serving = await start(tokens=GeneratedKeys(tmp_path / "key_file.json", 60))
    endless = asyncio.Event()

    async def requests():
        await endless.wait()  # no message, no end
        yield b""

    for path in ("StreamPredictions2", "Predictions"):
        call = serving.inference_channel.stream_unary(f"/{INFERENCE}/{path}")(requests())
        error = await failure(asyncio.wait_for(call, 20))
        assert error.code() is StatusCode.PERMISSION_DENIED
    assert all(server.budget.held == 0 for server, _ in serving.endpoints._servers)


@pytest.mark.parametrize(
    "service", ["inference.GRPCInferenceService", "inference.model_repository.ModelRepositoryService"]
)
async def test_the_index_of_the_repository_needs_the_management_token(start, tmp_path, service):
    key_file = tmp_path / "key_file.json"
    serving = await start(tokens=GeneratedKeys(key_file, 60))
    keys = {name: each["key"] for name, each in json.loads(key_file.read_text()).items()}
    index = serving.inference_channel.unary_unary(f"/{service}/RepositoryIndex")
    error = await failure(index(b"", metadata=(("authorization", f"Bearer {keys['inference']}"),)))
    assert error.code() is StatusCode.PERMISSION_DENIED
    await index(b"", metadata=(("authorization", f"Bearer {keys['management']}"),))


async def test_what_needs_no_token_takes_no_large_messages(serving):
    for path in ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"):
        error = await failure(serving.inference_channel.unary_unary(path)(bytes(5000)))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED


async def test_a_name_of_a_megabyte_is_not_sent_back(serving):
    name = "%" * (1 << 20)
    error = await failure(serving.inference.Predictions(inference_pb2.PredictionsRequest(model_name=name)))
    assert error.code() is StatusCode.INTERNAL
    assert 100 < len(error.details()) <= 4096
    assert error.details().endswith("...")


async def test_streams_need_a_token_too(start, tmp_path):
    serving = await start(tokens=GeneratedKeys(tmp_path / "key_file.json", 60))
    for call in (serving.inference.StreamPredictions(request(data=b"")), serving.inference.StreamPredictions2()):
        assert (await failure(call.read())).code() is StatusCode.PERMISSION_DENIED
    assert serving.registry.model.calls == []


@pytest.mark.parametrize(("channel", "service"), [("inference_channel", INFERENCE), ("management_channel", MANAGEMENT)])
async def test_health(start, tmp_path, channel, service):
    serving = await start(tokens=GeneratedKeys(tmp_path / "key_file.json", 60))
    health = health_pb2_grpc.HealthStub(getattr(serving, channel))
    for name in ("", service):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
    serving.registry.is_startup_ready = False
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    error = await failure(health.Check(health_pb2.HealthCheckRequest(service="other")))
    assert error.code() is StatusCode.NOT_FOUND


async def test_health_while_draining(serving):
    health = health_pb2_grpc.HealthStub(serving.inference_channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
    assert (await watch.read()).status == SERVING
    serving.endpoints.context.start_draining()
    assert (await watch.read()).status == NOT_SERVING
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    serving.registry.model.behave = echo
    assert (await serving.inference.Predictions(request(data=b"x"))).prediction == b"x"
    await serving.endpoints.close()
    assert await watch.read() is grpc.aio.EOF


async def test_reflection(serving):
    open_inference = {
        "inference.GRPCInferenceService",
        "inference.model_repository.ModelRepositoryService",
        "org.pytorch.serve.grpc.openinference.GRPCInferenceService",
    }
    for channel, services in (
        (serving.inference_channel, {INFERENCE, "transport.AsyncInference", *open_inference}),
        (serving.management_channel, {MANAGEMENT}),
    ):
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {each.name for each in (await call.read()).list_services_response.service}
        assert listed == {*services, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for service in listed:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=service))
            assert (await call.read()).file_descriptor_response.file_descriptor_proto
        call.cancel()


async def test_reflection_tells_the_comments_of_the_definitions(serving):
    call = reflection_pb2_grpc.ServerReflectionStub(serving.inference_channel).ServerReflectionInfo()
    for symbol, comment in (
        (INFERENCE, "Version of the model; empty for its default version."),
        ("inference.GRPCInferenceService", "Empty for the default version, here and below."),
        ("inference.ModelInferRequest", "The value of a parameter."),
    ):
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        serialized = (await call.read()).file_descriptor_response.file_descriptor_proto
        files = [FileDescriptorProto.FromString(each) for each in serialized]
        comments = [each.leading_comments.strip() for file in files for each in file.source_code_info.location]
        assert comment in comments
    call.cancel()


@pytest.mark.parametrize(
    "file",
    [
        "torchserve_py/apis/grpc/protos/inference.proto",
        "torchserve_py/apis/grpc/protos/health.proto",
        "google/rpc/status.proto",
    ],
)
async def test_reflection_tells_a_file_and_all_that_it_imports(serving, file):
    call = reflection_pb2_grpc.ServerReflectionStub(serving.inference_channel).ServerReflectionInfo()
    asked = reflection_pb2.ServerReflectionRequest(host="here", file_by_filename=file)
    await call.write(asked)
    answer = await call.read()
    assert answer.original_request == asked
    told = [FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto]
    names = [each.name for each in told]
    assert names[0] == file
    assert len(set(names)) == len(names)
    assert {name for each in told for name in each.dependency} <= set(names)
    call.cancel()


async def test_reflection_tells_that_a_message_has_no_extensions(serving):
    call = reflection_pb2_grpc.ServerReflectionStub(serving.inference_channel).ServerReflectionInfo()
    await call.write(
        reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelInferRequest")
    )
    found = (await call.read()).all_extension_numbers_response
    assert (found.base_type_name, list(found.extension_number)) == ("inference.ModelInferRequest", [])
    call.cancel()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"file_by_filename": "other.proto"}, StatusCode.NOT_FOUND),
        ({"file_containing_symbol": "inference.Other"}, StatusCode.NOT_FOUND),
        ({"file_containing_symbol": ""}, StatusCode.NOT_FOUND),
        ({"all_extension_numbers_of_type": "inference.Other"}, StatusCode.NOT_FOUND),
        (
            {"file_containing_extension": {"containing_type": "inference.ModelInferRequest", "extension_number": 1}},
            StatusCode.NOT_FOUND,
        ),
        (
            {"file_containing_extension": {"containing_type": "inference.Other", "extension_number": -1}},
            StatusCode.NOT_FOUND,
        ),
        ({}, StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_reflection_refuses_one_request_and_answers_the_next_one(serving, asked, code):
    call = reflection_pb2_grpc.ServerReflectionStub(serving.inference_channel).ServerReflectionInfo()
    for each in (asked, {"list_services": "*"}):
        await call.write(reflection_pb2.ServerReflectionRequest(**each))
    refused, listed = await call.read(), await call.read()
    assert refused.error_response.error_code == code.value[0]
    assert refused.error_response.error_message
    assert refused.original_request == reflection_pb2.ServerReflectionRequest(**asked)
    assert listed.list_services_response.service
    call.cancel()


async def test_the_largest_message(start):
    serving = await start(max_request_size=5_000_000)
    serving.registry.model.behave = lambda call: call.part(bytes(6_000_000))
    unlimited = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(serving.target("inference"), options=unlimited) as channel:
        stub = InferenceAPIsServiceStub(channel)
        answer = await stub.Predictions(request(data=bytes(4_900_000)))
        assert len(answer.prediction) == 6_000_000
        error = await failure(stub.Predictions(request(data=bytes(5_000_001))))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "vs. 5000000), which max_request_size sets" in error.details()


async def test_calls_that_end_before_their_handler_begins_are_in_the_access_log(start, caplog):
    caplog.set_level(logging.INFO, logger="ACCESS_LOG")
    serving = await start(access_log=True, max_request_size=1000)

    def noted():
        access_log.flush()
        return [record.getMessage().split('" ')[1][:2] for record in caplog.records if record.name == "ACCESS_LOG"]

    with pytest.raises(grpc.aio.AioRpcError):
        await serving.inference.Predictions(request(data=b"x" * 2000))
    async with asyncio.timeout(60):
        while noted() != ["8 "]:  # RESOURCE_EXHAUSTED
            await asyncio.sleep(0.01)
        address = serving.endpoints.addresses["grpc_inference_port"]
        client = RawClient(*await asyncio.open_connection(address.host, address.port))
        path = f"/{INFERENCE}/Predictions"
        headers = [(name, path if name == ":path" else value) for name, value in HEADERS]
        client.begin(client.request(1, headers=headers), frame(frames.DATA, 0, 1, b"\0\0"))
        await client.answers_pings()
        client.writer.close()  # amid its request
        while noted() != ["8 ", "1 "]:
            await asyncio.sleep(0.01)


async def test_the_access_log(start, caplog):
    caplog.set_level(logging.INFO, logger="ACCESS_LOG")
    serving = await start(access_log=True)
    model = serving.registry.model
    model.behave = echo
    await serving.inference.Predictions(request(data=b""))
    await failure(serving.inference.Predictions(request(model="foo")))
    model.behave = later
    model.submitted.clear()
    call = serving.inference.StreamPredictions(request(data=b""))
    await model.submitted.wait()
    call.cancel()
    await model.cancelled.wait()
    await serving.endpoints.close()
    access_log.flush()
    lines = [record.getMessage() for record in caplog.records if record.name == "ACCESS_LOG"]
    pattern = rf'/127\.0\.0\.1:\d+ "gRPC {re.escape(INFERENCE)}/(\w+) HTTP/2\.0" (\d+) \d+'
    assert [re.fullmatch(pattern, line).groups() for line in lines] == [
        ("Predictions", "0"),
        ("Predictions", "13"),
        ("StreamPredictions", "1"),
    ]


async def test_connections_do_not_live_longer_than_they_may(start):
    serving = await start(grpc_inference_max_connection_age_ms=200, grpc_inference_max_connection_age_grace_ms=100)
    serving.registry.model.behave = later
    error = await failure(serving.inference.Predictions(request(data=b"")))
    assert error.code() is StatusCode.UNAVAILABLE
    await serving.registry.model.cancelled.wait()


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_client"])
async def test_more_connections_than_the_limit(start, limit):
    serving = await start(**{limit: 1})
    host, port = serving.target("inference").split(":")
    first_reader, first = await asyncio.open_connection(host, port)
    await first_reader.readexactly(9)
    reader, second = await asyncio.open_connection(host, port)
    try:
        told = await asyncio.wait_for(reader.read(), 30)  # it might ask for a probe; it asks for nothing, and is closed
        assert told.endswith(b"\0\0\x08\x07" + bytes(13)), "a GOAWAY that lets no stream run"
    except ConnectionResetError:
        pass
    first.close()
    second.close()
