"""The management service."""

import json

import grpc
import pytest
from grpc import StatusCode
from tests.apis.grpc.models import registry_of
from tests.endpoints.fake_serving import FakeModel

from torchserve_py.apis.grpc.protos import management_pb2 as messages
from torchserve_py.core.archive.errors import ArchiveNotFound, DownloadError
from torchserve_py.core.serving.errors import InvalidModel, UnregisterTimeout, VersionConflict, WorkersFailed
from torchserve_py.core.serving.serving import RegisterResult


async def failure(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_describe_is_what_rest_shows(serving):
    answer = await serving.management.DescribeModel(messages.DescribeModelRequest(model_name="noop"))
    (described,) = json.loads(answer.msg)
    assert answer.msg.startswith('[\n  {\n    "modelName": "noop",\n    "modelVersion": "1.0",\n')
    assert answer.msg.endswith("}\n]")
    assert described["workers"][0]["startTime"] == "2024-05-30T21:41:47.098Z"
    assert "customizedMetadata" not in described


async def test_describe_a_version_and_all_versions(start):
    serving = await start(registry_of(FakeModel(version="1.0"), FakeModel(version="2.0")))

    async def versions(version):
        request = messages.DescribeModelRequest(model_name="noop", model_version=version)
        described = json.loads((await serving.management.DescribeModel(request)).msg)
        return [each["modelVersion"] for each in described]

    assert await versions("2.0") == ["2.0"]
    assert await versions("") == ["1.0"]
    assert await versions("all") == ["1.0", "2.0"]


async def test_describe_with_what_the_handler_says(serving):
    serving.registry.model.metadata = {"labels": 3}
    request = messages.DescribeModelRequest(model_name="noop", customized=True)
    (described,) = json.loads((await serving.management.DescribeModel(request)).msg)
    assert described["customizedMetadata"] == {"labels": 3}


async def test_list(start):
    serving = await start(registry_of(*(FakeModel(f"m{number:03}") for number in range(150))))

    async def page(**fields):
        listed = json.loads((await serving.management.ListModels(messages.ListModelsRequest(**fields))).msg)
        return len(listed["models"]), listed.get("nextPageToken")

    assert await page() == (100, "100")
    assert await page(limit=2, next_page_token=149) == (1, None)
    assert await page(limit=0) == (0, "0")
    answer = await serving.management.ListModels(messages.ListModelsRequest(limit=1))
    assert json.loads(answer.msg)["models"] == [{"modelName": "m000", "modelUrl": "m000.mar"}]


async def test_register_with_everything(serving):
    request = messages.RegisterModelRequest(
        url="noop.mar",
        model_name="m",
        handler="h",
        runtime="python3",
        batch_size=4,
        max_batch_delay=50,
        initial_workers=1,
        synchronous=True,
        response_timeout=10,
        startup_timeout=20,
        s3_sse_kms=True,
    )
    answer = await serving.management.RegisterModel(request)
    assert answer.msg == 'Model "noop" Version: 1.0 registered with 1 initial workers'
    (sent,) = serving.registry.requests
    assert (sent.url, sent.model_name, sent.handler, sent.runtime) == ("noop.mar", "m", "h", "python3")
    assert (sent.batch_size, sent.max_batch_delay, sent.initial_workers) == (4, 50, 1)
    assert (sent.response_timeout, sent.startup_timeout) == (10, 20)
    assert sent.synchronous
    assert sent.s3_sse_kms


async def test_register_with_nothing_but_a_url(serving):
    serving.registry.register_result = RegisterResult("noop", "1.0", 0, 2, pending=True)
    answer = await serving.management.RegisterModel(messages.RegisterModelRequest(url="noop.mar"))
    assert answer.msg == "Processing worker updates..."
    (sent,) = serving.registry.requests
    optional = (sent.model_name, sent.handler, sent.runtime, sent.batch_size, sent.max_batch_delay)
    assert optional == (None,) * 5
    assert (sent.initial_workers, sent.response_timeout, sent.startup_timeout) == (None, None, None)
    assert not sent.synchronous


async def test_a_zero_that_is_given_counts(serving):
    request = messages.RegisterModelRequest(url="noop.mar", initial_workers=0, max_batch_delay=0, batch_size=-1)
    await serving.management.RegisterModel(request)
    (sent,) = serving.registry.requests
    assert (sent.initial_workers, sent.max_batch_delay, sent.batch_size) == (0, 0, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("noop", "1.0", 1, 1, False)),
        ({"min_worker": 3}, ("noop", "1.0", 3, 3, False)),
        ({"min_worker": 2, "max_worker": 4, "synchronous": True}, ("noop", "1.0", 2, 4, True)),
        ({"min_worker": 0, "max_worker": 0}, ("noop", "1.0", 0, 0, False)),
        ({"model_version": "1.0", "number_gpu": 7, "timeout": 9}, ("noop", "1.0", 1, 1, False)),
    ],
)
async def test_scale(serving, fields, expected):
    answer = await serving.management.ScaleWorker(messages.ScaleWorkerRequest(model_name="noop", **fields))
    assert serving.registry.requests == [expected]
    version = ", version: 1.0" if "model_version" in fields else ""
    assert answer.msg == f"Workers scaled to {expected[2]} for model: noop{version}" or expected[2] > 1


async def test_scale_that_is_not_over(serving):
    serving.registry.scale_result = None
    answer = await serving.management.ScaleWorker(messages.ScaleWorkerRequest(model_name="noop"))
    assert answer.msg == "Processing worker updates..."


async def test_set_default_and_unregister(serving):
    request = messages.SetDefaultRequest(model_name="noop", model_version="1.0")
    answer = await serving.management.SetDefault(request)
    assert answer.msg == 'Default version successfully updated for model "noop" to "1.0"'
    answer = await serving.management.UnregisterModel(messages.UnregisterModelRequest(model_name="noop"))
    assert answer.msg == 'Model "noop" unregistered'
    assert serving.registry.requests == [("noop", "1.0"), ("noop", "1.0")]


JAVA = "org.pytorch.serve"


@pytest.mark.parametrize(
    ("raised", "code", "description"),
    [
        (ArchiveNotFound("Model not found at: x"), StatusCode.NOT_FOUND, "archive.model.ModelNotFoundException"),
        (
            DownloadError("http://x/y"),
            StatusCode.INVALID_ARGUMENT,
            "archive.DownloadArchiveException",
        ),
        (InvalidModel("no"), StatusCode.INVALID_ARGUMENT, "archive.model.InvalidModelException"),
        (VersionConflict("noop", "1.0"), StatusCode.ALREADY_EXISTS, "http.ConflictStatusException"),
    ],
)
async def test_registrations_that_fail(serving, raised, code, description):
    serving.registry.failure = raised
    request = messages.RegisterModelRequest(url="x")
    assert await failure(serving.management.RegisterModel(request)) == (code, f"{raised}\n{JAVA}.{description}")


async def test_workers_that_do_not_start(serving):
    serving.registry.failure = WorkersFailed("noop", "1.0", 507)
    code, description = await failure(serving.management.RegisterModel(messages.RegisterModelRequest(url="x")))
    assert code is StatusCode.INTERNAL
    assert description == (
        "Error while creating workers: Failed to start workers for model noop version: 1.0\n"
        f"{JAVA}.http.InternalServerException"
    )


async def test_a_scaling_that_another_one_overtakes(serving):
    serving.registry.failure = WorkersFailed("noop", "1.0", 409)
    code, description = await failure(serving.management.ScaleWorker(messages.ScaleWorkerRequest(model_name="noop")))
    assert (code, f"{JAVA}.http.ConflictStatusException" in description) == (StatusCode.ABORTED, True)


async def test_the_default_version_stays_while_there_are_others(start):
    serving = await start(registry_of(FakeModel(version="1.0"), FakeModel(version="2.0")))
    call = serving.management.UnregisterModel(messages.UnregisterModelRequest(model_name="noop"))
    assert await failure(call) == (
        StatusCode.PERMISSION_DENIED,
        f"Cannot remove default version for model noop\n{JAVA}.http.InvalidModelVersionException",
    )


async def test_an_unregistration_that_takes_too_long(serving):
    serving.registry.failure = UnregisterTimeout("noop")
    code, _ = await failure(serving.management.UnregisterModel(messages.UnregisterModelRequest(model_name="noop")))
    assert code is StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("method", "request_", "code", "message"),
    [
        ("DescribeModel", messages.DescribeModelRequest(model_name="foo"), "NOT_FOUND", "Model not found: foo"),
        ("ScaleWorker", messages.ScaleWorkerRequest(model_name="foo"), "NOT_FOUND", "Model not found: foo"),
        ("UnregisterModel", messages.UnregisterModelRequest(model_name="foo"), "NOT_FOUND", "Model not found: foo"),
        (
            "SetDefault",
            messages.SetDefaultRequest(model_name="noop", model_version="9"),
            "NOT_FOUND",
            "Model version 9 does not exist for model noop",
        ),
        *(
            (method, request_, "NOT_FOUND", "Model not found: (none was given)")
            for method, request_ in (
                ("DescribeModel", messages.DescribeModelRequest(model_version="9")),
                ("ScaleWorker", messages.ScaleWorkerRequest(model_version="9")),
                ("SetDefault", messages.SetDefaultRequest(model_version="9")),
                ("UnregisterModel", messages.UnregisterModelRequest(model_version="9")),
            )
        ),
        ("RegisterModel", messages.RegisterModelRequest(), "INVALID_ARGUMENT", "Parameter url is required."),
        (
            "SetDefault",
            messages.SetDefaultRequest(model_name="noop"),
            "NOT_FOUND",
            "Model version (none was given) does not exist for model noop",
        ),
        (
            "ScaleWorker",
            messages.ScaleWorkerRequest(model_name="noop", min_worker=2, max_worker=1),
            "INVALID_ARGUMENT",
            "max_worker cannot be less than min_worker.",
        ),
        (
            "ScaleWorker",
            messages.ScaleWorkerRequest(model_name="noop", min_worker=-1),
            "INVALID_ARGUMENT",
            "Parameter min_worker: '-1' is not an integer of at least 0.",
        ),
        (
            "ListModels",
            messages.ListModelsRequest(next_page_token=-1),
            "INVALID_ARGUMENT",
            "Parameter next_page_token: '-1' is not an integer of at least 0.",
        ),
    ],
)
async def test_requests_that_are_wrong(serving, method, request_, code, message):
    found, description = await failure(getattr(serving.management, method)(request_))
    assert found is StatusCode[code]
    assert description.split("\n")[0] == message


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("RegisterModel", messages.RegisterModelRequest(url="x")),
        ("UnregisterModel", messages.UnregisterModelRequest(model_name="noop")),
    ],
)
async def test_the_model_api_is_off(start, method, request_):
    serving = await start(enable_model_api=False)
    assert await failure(getattr(serving.management, method)(request_)) == (
        StatusCode.PERMISSION_DENIED,
        f"Model API disabled\n{JAVA}.archive.model.ModelException",
    )
    assert serving.registry.requests == []
