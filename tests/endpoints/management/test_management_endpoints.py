"""The management API: what calls change, statuses, bodies."""

import asyncio

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.management.management_requests import manage, status_text

from torchserve_py.core.archive.errors import ArchiveNotFound, DownloadError, InvalidArchive, UnreadableArchive
from torchserve_py.core.serving.errors import (
    BadParameter,
    InvalidModel,
    NotEnoughDevices,
    UnregisterTimeout,
    VersionConflict,
    WorkersFailed,
)
from torchserve_py.core.serving.serving import RegisterRequest, RegisterResult

TOO_LONG = f"Parameter response_timeout: '1{'0' * 79}...' is not an integer of at most 18 digits."
NOT_ALLOWED = "Requested method is not allowed, please refer to API document."


# Register.


async def test_register_passes_everything_on(serving):
    query = (
        "url=a%20b.mar&model_name=m&handler=h%3Ah&runtime=python3&batch_size=4&max_batch_delay=50&initial_workers=2"
        "&synchronous=false&response_timeout=7&startup_timeout=8&s3_sse_kms=TRUE&unknown=1"
    )
    await manage(serving, "POST", f"/models?{query}")
    expected = RegisterRequest(
        url="a b.mar",
        model_name="m",
        handler="h:h",
        runtime="python3",
        batch_size=4,
        max_batch_delay=50,
        initial_workers=2,
        synchronous=False,
        response_timeout=7,
        startup_timeout=8,
        s3_sse_kms=True,
    )
    assert serving.registry.requests == [expected]
    body = {
        "url": "a b.mar",
        "model_name": "m",
        "handler": "h:h",
        "runtime": "python3",
        "batch_size": 4,
        "max_batch_delay": "50",
        "initial_workers": 2,
        "synchronous": False,
        "response_timeout": 7,
        "startup_timeout": 8,
        "s3_sse_kms": "true",
    }
    await manage(serving, "POST", "/models?url=ignored", json=body)
    assert serving.registry.requests == [expected, expected]


async def test_what_is_not_given_is_left_to_the_registry(serving):
    await manage(serving, "POST", "/models?url=a.mar")
    await manage(serving, "POST", "/models", json={"url": "a.mar", "batch_size": None})
    assert serving.registry.requests == [RegisterRequest(url="a.mar")] * 2
    assert serving.registry.requests[0].synchronous


@pytest.mark.parametrize(
    ("result", "status", "text"),
    [
        (
            RegisterResult("m", "1.0", 0, 0, pending=False, loads_on_demand=True),
            200,
            'Model "m" Version: 1.0 registered with 0 initial workers. The first request starts one.',
        ),
        (
            RegisterResult("m", "1.0", 0, 0, pending=False),
            200,
            'Model "m" Version: 1.0 registered with 0 initial workers. Use scale workers API to add workers for the'
            " model.",
        ),
        (
            RegisterResult("m", "1.0", 2, 2, pending=False),
            200,
            'Model "m" Version: 1.0 registered with 2 initial workers',
        ),
        (RegisterResult("m", "1.0", 0, 2, pending=True), 202, "Processing worker updates..."),
        (RegisterResult("m", "1.0", 1, 2, pending=False), 206, "Workers scaling in progress..."),
    ],
)
async def test_register_answers(start, result, status, text):
    serving = await start(FakeServing(register_result=result))
    answer = await manage(serving, "POST", "/models?url=m.mar")
    assert (answer.status, status_text(answer)) == (status, text)
    assert answer.headers["content-type"] == "application/json"


async def test_workers_that_do_not_start_are_told_with_their_reason(start):
    registry = FakeServing()
    registry.failure = WorkersFailed("m", "1.0")
    registry.failure.__cause__ = RuntimeError("ModuleNotFoundError: No module named 'captum'")
    answer = await manage(await start(registry), "POST", "/models?url=m.mar")
    assert answer.json()["message"] == (
        "Failed to start workers for model m version: 1.0: ModuleNotFoundError: No module named 'captum'"
    )


@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (
            WorkersFailed("m", "1.0", 507),
            507,
            "InternalServerException",
            "Failed to start workers for model m version: 1.0",
        ),
        (
            WorkersFailed("m", "1.0"),
            500,
            "InternalServerException",
            "Failed to start workers for model m version: 1.0",
        ),
        (InvalidModel("Runtime is not defined or invalid."), 400, "InvalidModelException", None),
        (InvalidArchive("Model name is not defined."), 400, "InvalidModelException", None),
        (DownloadError("http://x"), 400, "DownloadArchiveException", "Failed to download archive from: http://x"),
        (BadParameter("Invalid RuntimeType value: x"), 400, "BadRequestException", None),
        (ArchiveNotFound("Model not found at: m.mar"), 404, "ModelNotFoundException", None),
        (UnreadableArchive("m.mar"), 500, "InternalServerException", "Failed to save model: m.mar"),
        (
            VersionConflict("m", "1.0"),
            409,
            "ConflictStatusException",
            "Model version 1.0 is already registered for model m",
        ),
        (
            NotEnoughDevices("m", 4),
            500,
            "WorkerInitializationException",
            "No enough gpu devices for model:m parallelLevel:4",
        ),
    ],
)
async def test_register_errors(start, error, status, kind, message):
    serving = await start(FakeServing(failure=error))
    answer = await manage(serving, "POST", "/models?url=m.mar")
    expected = {"code": status, "type": kind, "message": message or str(error)}
    assert (answer.status, answer.json()) == (status, expected)
    assert list(answer.json()) == ["code", "type", "message"]


@pytest.mark.parametrize(
    ("target", "body", "message"),
    [
        ("/models", None, "Parameter url is required."),
        ("/models?batch_size=4", None, "Parameter url is required."),
        ("/models?url=x", {}, "Parameter url is required."),
        ("/models?url=x&batch_size=many", None, "Parameter batch_size: 'many' is not an integer."),
        ("/models?url=x&batch_size=1.5", None, "Parameter batch_size: '1.5' is not an integer."),
        ("/models?url=x&synchronous=yes", None, "Parameter synchronous: 'yes' is not true or false."),
        ("/models", {"url": 5}, "Parameter url: '5' is not text."),
        ("/models", {"url": "x", "batch_size": True}, "Parameter batch_size: 'true' is not an integer."),
        ("/models", {"url": "x", "batch_size": [1]}, "Parameter batch_size: '[1]' is not an integer."),
        ("/models", ["url"], "The request body must be a JSON object, it is list."),
        (f"/models?url=x&response_timeout={10**400}", None, TOO_LONG),
        ("/models", {"url": "x", "response_timeout": 10**400}, TOO_LONG),
    ],
)
async def test_wrong_parameters_are_named(serving, target, body, message):
    answer = await manage(serving, "POST", target, **({} if body is None else {"json": body}))
    assert answer.status == 400
    assert answer.json() == {"code": 400, "type": "BadRequestException", "message": message}
    assert serving.registry.requests == []


@pytest.mark.parametrize(
    ("method", "query"),
    [("DELETE", "synchronous=null&timeout=null"), ("PUT", "min_worker=1&number_gpu=all&timeout=never")],
)
async def test_parameters_without_effect_may_be_anything(serving, method, query):
    assert (await manage(serving, method, f"/models/noop?{query}")).status in (200, 202)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_not_json_is_refused(serving, body):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = await manage(serving, "POST", "/models?url=x", data=body, headers=headers)
    assert (answer.status, answer.json()["type"]) == (400, "BadRequestException")


async def test_without_the_model_api_models_are_neither_registered_nor_unregistered(start):
    serving = await start(enable_model_api=False)
    for method, path in (("POST", "/models?url=x"), ("DELETE", "/models/noop"), ("DELETE", "/models/noop/1.0")):
        answer = await manage(serving, method, path)
        assert (answer.status, answer.json()["type"]) == (405, "MethodNotAllowedException")
        assert answer.headers["ts-error-cause"] == "model_api_disabled"
        assert answer.json()["message"] == NOT_ALLOWED
    assert serving.registry.requests == []
    assert (await manage(serving, "PUT", "/models/noop?min_worker=1")).status == 200
    assert (await manage(serving, "PUT", "/models/noop/1.0/set-default")).status == 200
    assert (await manage(serving, "GET", "/models")).status == 200


async def test_a_registration_goes_on_when_its_caller_hangs_up(start):
    registry = FakeServing(hold=asyncio.Event())
    serving = await start(registry)
    connection = await serving.raw(b"POST /models?url=x HTTP/1.1\r\nHost: localhost\r\n\r\n", endpoint="management")
    async with asyncio.timeout(60):
        while not registry.requests:
            await asyncio.sleep(0)
        await connection.close()
        for _ in range(100):
            await asyncio.sleep(0)
        registry.hold.set()
        await registry.finished.wait()


# Scale.


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/models/noop", ("noop", "1.0", 1, 1, False)),
        ("/models/noop?min_worker=3", ("noop", "1.0", 3, 3, False)),
        ("/models/noop?min_worker=0", ("noop", "1.0", 0, 0, False)),
        ("/models/noop?max_worker=2", ("noop", "1.0", 1, 2, False)),
        (
            "/models/noop/1.0?min_worker=2&max_worker=4&synchronous=true&number_gpu=1&timeout=5",
            ("noop", "1.0", 2, 4, True),
        ),
        ("/models/noop?model_version=1.0", ("noop", "1.0", 1, 1, False)),
    ],
)
async def test_scale_passes_everything_on(serving, target, expected):
    await manage(serving, "PUT", target)
    assert serving.registry.requests == [expected]


@pytest.mark.parametrize(
    ("result", "path", "status", "text"),
    [
        (None, "/models/noop", 202, "Processing worker updates..."),
        (2, "/models/noop", 200, "Workers scaled to 2 for model: noop"),
        (
            2,
            "/models/noop/1.0",
            200,
            "Workers scaled to 2 for model: noop, version: 1.0",
        ),
        (1, "/models/noop", 206, "Workers scaling in progress..."),
    ],
)
async def test_scale_answers(start, result, path, status, text):
    serving = await start(FakeServing(scale_result=result))
    answer = await manage(serving, "PUT", f"{path}?min_worker=2&synchronous=true")
    assert (answer.status, status_text(answer)) == (status, text)


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("/models/noop?min_worker=2&max_worker=1", 400, "max_worker cannot be less than min_worker."),
        ("/models/noop?max_worker=0", 400, "max_worker cannot be less than min_worker."),
        ("/models/noop?min_worker=two", 400, "Parameter min_worker: 'two' is not an integer."),
        ("/models/noop?min_worker=-1", 400, "Parameter min_worker: '-1' is not an integer of at least 0."),
        ("/models/foo", 404, "Model not found: foo"),
        ("/models/noop/9", 404, "Model version: 9 does not exist for model: noop"),
    ],
)
async def test_scale_errors(serving, target, status, message):
    answer = await manage(serving, "PUT", target)
    assert (answer.status, answer.json()["message"]) == (status, message)


# Unregister, default version, readiness.


async def test_unregister(serving):
    answer = await manage(serving, "DELETE", "/models/noop/1.0")
    assert (answer.status, status_text(answer)) == (200, 'Model "noop" unregistered')
    await manage(serving, "DELETE", "/models/noop")
    assert serving.registry.requests == [("noop", "1.0"), ("noop", "1.0")]


async def test_unregister_errors(start):
    registry = FakeServing([FakeModel("m", "1"), FakeModel("m", "2")])
    serving = await start(registry)
    answer = await manage(serving, "DELETE", "/models/m")
    assert (answer.status, answer.json()["type"]) == (403, "InvalidModelVersionException")
    assert answer.json()["message"] == "Cannot remove default version for model m"
    assert (await manage(serving, "DELETE", "/models/foo")).status == 404
    registry.failure = UnregisterTimeout("m")
    answer = await manage(serving, "DELETE", "/models/m/2")
    assert (answer.status, answer.json()["type"]) == (408, "RequestTimeoutException")
    assert answer.json()["message"] == "Timed out while cleaning resources: m"


async def test_set_default(start):
    serving = await start(FakeServing([FakeModel("m", "1"), FakeModel("m", "2")]))
    answer = await manage(serving, "PUT", "/models/m/2/set-default")
    assert answer.status == 200
    assert status_text(answer) == 'Default version successfully updated for model "m" to "2"'
    assert serving.registry.requests == [("m", "2")]
    answer = await manage(serving, "PUT", "/models/m/3/set-default")
    assert (answer.status, answer.json()["type"]) == (404, "ModelVersionNotFoundException")
    assert answer.json()["message"] == "Model version 3 does not exist for model m"
    assert (await manage(serving, "PUT", "/models/foo/3/set-default")).json()["message"] == "Model not found: foo"


async def test_kserve_readiness(serving):
    answer = await manage(serving, "GET", "/v1/models/noop")
    assert (answer.status, answer.body) == (200, b'{\n  "name": "noop",\n  "ready": true\n}\n')
    serving.registry.model.workers = []
    assert (await manage(serving, "GET", "/v1/models/noop")).json()["ready"] is False
    assert (await manage(serving, "GET", "/v1/models/foo")).status == 404
    assert (await manage(serving, "POST", "/v1/models/noop")).status == 405


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/models", 405),
        ("PATCH", "/models/noop", 405),
        ("POST", "/models/noop", 405),
        ("GET", "/models/noop/1.0/set-default", 405),
        ("PUT", "/models/noop/1.0/other", 404),
        ("GET", "/models/noop/1.0/set-default/more", 404),
        ("GET", "/v1/models", 404),
        ("GET", "/v1/other/noop", 404),
        ("GET", "/ping", 404),
        ("GET", "/", 405),
    ],
)
async def test_other_paths_and_methods(serving, method, path, status):
    answer = await manage(serving, method, path)
    assert (answer.status, answer.json()["code"]) == (status, status)


async def test_a_parameter_that_a_call_does_not_have_is_named_in_the_log(serving, caplog):
    for query in ("?min_workers=2", "?min_worker=2&timeout=-1&number_gpu=0&model_version=1.0"):
        assert (await serving.request("PUT", f"/models/noop{query}", endpoint="management")).status in (200, 206)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "'min_workers'" in warning
    assert "min_worker, max_worker," in warning
