"""The management API as a TorchServe user drives it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from tests.e2e.running_server import RunningServer, eventually, model_folder

HANDLER = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"labels": ["cat", "dog"]}]
        return [f"%s {context.model_name}"] * len(data)
"""

BROKEN = "import a_module_that_is_not_there\n"

KEYS = [
    "modelName",
    "modelVersion",
    "modelUrl",
    "runtime",
    "minWorkers",
    "maxWorkers",
    "batchSize",
    "maxBatchDelay",
    "responseTimeout",
    "startupTimeout",
    "maxRetryTimeoutInSec",
    "clientTimeoutInMills",
    "parallelType",
    "parallelLevel",
    "deviceType",
    "continuousBatching",
    "useJobTicket",
    "useVenv",
    "stateful",
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxNumSequence",
    "maxSequenceJobQueueSize",
    "loadedAtStartup",
    "workers",
    "jobQueueStatus",
]

WORKER_KEYS = ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "permanent", HANDLER % "permanent", "batchSize: 3\n")
    with RunningServer({"permanent": folder}, {"drain_timeout": 1, "default_workers_per_model": 1}) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def call(server: RunningServer) -> Iterator[Management]:
    management = Management(server)
    yield management
    for name in management.names() - {"permanent"}:
        for version in reversed([each["modelVersion"] for each in server.describe(name, "/all")]):
            management.delete(f"/models/{name}/{version}")
    assert management.names() == {"permanent"}


class Management:
    """Calls to the management API."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __call__(self, method: str, path: str, **more: Any) -> requests.Response:
        return requests.request(method, f"{self._server.management}{path}", timeout=180, **more)

    def post(self, **parameters: str | int) -> requests.Response:
        return self("POST", "/models", params=parameters)

    def put(self, path: str, **parameters: str | int) -> requests.Response:
        return self("PUT", path, params=parameters)

    def delete(self, path: str) -> requests.Response:
        return self("DELETE", path)

    def names(self) -> set[str]:
        models: list[dict[str, str]] = self("GET", "/models").json()["models"]
        return {model["modelName"] for model in models}


def archive(server: RunningServer, name: str, version: str, handler: str) -> str:
    """Put an archive into the model store, as torch-model-archiver writes it; return its file name."""
    manifest = (
        f'{{"createdOn": "1", "runtime": "python", "archiverVersion": "0.12.0", "model": {{"modelName": "{name}",'
        f' "modelVersion": "{version}", "handler": "the_handler.py"}}}}'
    )
    file = server.model_store / f"{name}-{version}.mar"
    with zipfile.ZipFile(file, "w") as mar:
        mar.writestr("MAR-INF/MANIFEST.json", manifest)
        mar.writestr("the_handler.py", handler)
    return file.name


def status(response: requests.Response) -> tuple[int, str]:
    return response.status_code, response.json()["status"]


def error(response: requests.Response) -> tuple[int, str, str]:
    body = response.json()
    assert list(body) == ["code", "type", "message"]
    assert body["code"] == response.status_code
    return response.status_code, body["type"], body["message"]


# Register


def test_register_from_the_model_store(server: RunningServer, call: Management) -> None:
    url = archive(server, "stored", "2.5", HANDLER % "archive")
    registered = call.post(url=url, initial_workers=1, synchronous="true", batch_size=4, max_batch_delay=7)
    assert status(registered) == (200, 'Model "stored" Version: 2.5 registered with 1 initial workers')
    assert server.predict("stored").text == "archive stored"
    described = server.describe("stored")[0]
    assert (described["modelUrl"], described["modelVersion"]) == (url, "2.5")
    assert (described["batchSize"], described["maxBatchDelay"]) == (4, 7)
    assert described["loadedAtStartup"] is False


def test_register_by_json_body(server: RunningServer, call: Management) -> None:
    url = archive(server, "stored", "1.0", HANDLER % "json")
    body = {"url": url, "model_name": "renamed", "initial_workers": 2, "synchronous": True}
    registered = call("POST", "/models?url=ignored.mar", json=body)
    assert status(registered) == (200, 'Model "renamed" Version: 1.0 registered with 2 initial workers')
    assert server.predict("renamed").text == "json renamed"
    described = server.describe("renamed")[0]
    assert len(described["workers"]) == 2
    assert described["maxBatchDelay"] == 100


def test_register_without_waiting(server: RunningServer, call: Management) -> None:
    url = archive(server, "later", "1.0", HANDLER % "later")
    registered = call.post(url=url, initial_workers=1, synchronous="false")
    assert status(registered) == (202, "Processing worker updates...")
    assert server.predict("later").text == "later later"


def test_register_without_workers(server: RunningServer, call: Management) -> None:
    url = archive(server, "none", "1.0", HANDLER % "none")
    assert status(call.post(url=url, initial_workers=0)) == (
        200,
        'Model "none" Version: 1.0 registered with 0 initial workers.'
        " Use scale workers API to add workers for the model.",
    )
    assert call("GET", "/v1/models/none").json() == {"name": "none", "ready": False}
    assert server.predict("none").status_code == 503


def test_a_model_that_does_not_load_is_not_registered(server: RunningServer, call: Management) -> None:
    url = archive(server, "broken", "1.0", BROKEN)
    assert error(call.post(url=url, initial_workers=1)) == (
        500,
        "InternalServerException",
        "Failed to start workers for model broken version: 1.0:"
        " ModuleNotFoundError: No module named 'a_module_that_is_not_there';"
        f" it is neither beside the model nor installed for {sys.executable}",
    )
    assert error(call("GET", "/models/broken")) == (404, "ModelNotFoundException", "Model not found: broken")
    assert "a_module_that_is_not_there" in server.log()
    assert call.post(url=url, initial_workers=0).status_code == 200
    status, _, message = error(call.put("/models/broken", min_worker=1, synchronous="true"))
    assert status == 500
    assert message.startswith("Failed to start workers for model broken version: 1.0: ModuleNotFoundError")
    assert call("DELETE", "/models/broken").status_code == 200


def test_register_by_file_url(server: RunningServer, call: Management, tmp_path: Path) -> None:
    url = archive(server, "fetched", "1.0", HANDLER % "fetched")
    elsewhere = (server.model_store / url).rename(tmp_path / url)
    assert call.post(url=elsewhere.as_uri(), initial_workers=1).status_code == 200
    assert server.predict("fetched").text == "fetched fetched"
    assert (server.model_store / url).is_file()
    assert call.delete("/models/fetched").status_code == 200
    assert not (server.model_store / url).exists()
    assert elsewhere.is_file()


def test_a_url_that_is_not_allowed_is_refused(call: Management) -> None:
    url = "https://example.org/model.mar"
    code, kind, message = error(call.post(url=url))
    assert (code, kind) == (404, "ModelNotFoundException")
    assert message.startswith(f"Given URL {url} does not match any allowed URL(s)")


def test_edit_and_try(server: RunningServer, call: Management, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "draft", HANDLER % "first")
    for words in ("first", "second", "third"):
        (folder / "handler.py").write_text(HANDLER % words)
        assert call.post(url=str(folder), initial_workers=1).status_code == 200
        assert server.predict("draft").text == f"{words} draft"
        assert status(call.delete("/models/draft")) == (200, 'Model "draft" unregistered')
    assert (folder / "handler.py").exists()


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (400, "BadRequestException", "Parameter url is required.")),
        ({"url": "no.mar"}, (404, "ModelNotFoundException", "Model not found at: no.mar")),
        ({"url": "../x.mar"}, (404, "ModelNotFoundException", "Relative path is not allowed in url: ../x.mar")),
        ({"url": ""}, (404, "ModelNotFoundException", "empty url")),
        (
            {"url": "permanent", "batch_size": "many"},
            (400, "BadRequestException", "Parameter batch_size: 'many' is not an integer."),
        ),
    ],
)
def test_a_wrong_registration_is_refused(
    call: Management, parameters: dict[str, str], expected: tuple[int, str, str]
) -> None:
    status_code, kind, message = error(call.post(**parameters))
    assert (status_code, kind) == expected[:2]
    assert message.startswith(expected[2])


def test_a_contradictory_configuration_is_refused(call: Management, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "contradiction", HANDLER % "", "sequenceBatching: true\n")
    code, kind, message = error(call.post(url=str(folder)))
    assert (code, kind) == (400, "InvalidModelException")
    assert "sequenceMaxIdleMSec" in message


def test_the_same_version_twice_is_a_conflict(server: RunningServer, call: Management) -> None:
    url = archive(server, "twice", "1.0", HANDLER % "")
    call.post(url=url, initial_workers=0)
    assert error(call.post(url=url)) == (
        409,
        "ConflictStatusException",
        "Model version 1.0 is already registered for model twice",
    )


# Versions


def test_versions_and_the_default(server: RunningServer, call: Management) -> None:
    for version in ("1.0", "2.0"):
        call.post(url=archive(server, "many", version, HANDLER % version), initial_workers=1)
    assert [server.predict(path).text for path in ("many", "many/1.0", "many/2.0")] == [
        "1.0 many",
        "1.0 many",
        "2.0 many",
    ]
    assert [each["modelVersion"] for each in server.describe("many", "/all")] == ["1.0", "2.0"]
    assert error(call.delete("/models/many")) == (
        403,
        "InvalidModelVersionException",
        "Cannot remove default version for model many",
    )
    assert status(call.put("/models/many/2.0/set-default")) == (
        200,
        'Default version successfully updated for model "many" to "2.0"',
    )
    assert server.predict("many").text == "2.0 many"
    assert error(call.put("/models/many/3.0/set-default")) == (
        404,
        "ModelVersionNotFoundException",
        "Model version 3.0 does not exist for model many",
    )
    assert call.delete("/models/many/1.0").status_code == 200
    assert server.predict("many/1.0").status_code == 404
    assert server.predict("many").text == "2.0 many"


# Describe and list


def test_describe_has_torchserves_keys_in_order(server: RunningServer) -> None:
    described = server.describe("permanent")[0]
    assert list(described) == KEYS
    worker = described["workers"][0]
    assert list(worker) == WORKER_KEYS
    assert (worker["status"], worker["gpu"], worker["gpuUsage"]) == ("READY", False, "N/A")
    assert psutil.pid_exists(worker["pid"])
    assert described["loadedAtStartup"] is True
    assert described["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}


def test_describe_asks_the_handler(call: Management) -> None:
    described = call("GET", "/models/permanent?customized=true").json()[0]
    assert list(described) == [*KEYS, "customizedMetadata"]
    assert described["customizedMetadata"] == {"labels": ["cat", "dog"]}


def test_unknown_models_and_methods(call: Management) -> None:
    assert error(call("GET", "/models/ghost"))[:2] == (404, "ModelNotFoundException")
    assert error(call("GET", "/models/permanent/9"))[:2] == (404, "ModelVersionNotFoundException")
    assert error(call.put("/models/ghost"))[:2] == (404, "ModelNotFoundException")
    assert error(call.delete("/models/ghost"))[:2] == (404, "ModelNotFoundException")
    assert error(call("PATCH", "/models"))[:2] == (405, "MethodNotAllowedException")
    assert error(call("GET", "/nowhere"))[:2] == (404, "ResourceNotFoundException")


def test_list_in_pages(server: RunningServer, call: Management) -> None:
    url = archive(server, "listed", "1.0", HANDLER % "")
    for name in ("zebra", "ant", "bee"):
        call.post(url=url, model_name=name, initial_workers=0)
    assert [model["modelName"] for model in call("GET", "/models").json()["models"]] == [
        "ant",
        "bee",
        "permanent",
        "zebra",
    ]
    page = call("GET", "/models?limit=3").json()
    assert list(page) == ["nextPageToken", "models"]
    assert page["models"][0] == {"modelName": "ant", "modelUrl": url}
    rest = call("GET", f"/models?limit=3&next_page_token={page['nextPageToken']}").json()
    assert rest == {"models": [{"modelName": "zebra", "modelUrl": url}]}


def test_kserve_readiness(call: Management) -> None:
    assert call("GET", "/v1/models/permanent").json() == {"name": "permanent", "ready": True}
    assert error(call("GET", "/v1/models/ghost"))[:2] == (404, "ModelNotFoundException")
    assert call("POST", "/v1/models/permanent").status_code == 405


# Scale and unregister


def test_scale_up_and_down(server: RunningServer, call: Management) -> None:
    def pids() -> set[int]:
        return {worker["pid"] for worker in server.describe("scaled")[0]["workers"] if worker["status"] == "READY"}

    call.post(url=archive(server, "scaled", "1.0", HANDLER % ""), initial_workers=1)
    first = pids()
    assert status(call.put("/models/scaled", min_worker=3, synchronous="true")) == (
        200,
        "Workers scaled to 3 for model: scaled",
    )
    three = pids()
    assert len(three) == 3
    assert first < three
    assert status(call.put("/models/scaled", min_worker=1, max_worker=1)) == (202, "Processing worker updates...")
    eventually(lambda: pids() == first, "two workers are gone from the description")
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in three - first), "their processes are gone")
    assert status(call.put("/models/scaled/1.0", min_worker=2, synchronous="true")) == (
        200,
        "Workers scaled to 2 for model: scaled, version: 1.0",
    )
    assert error(call.put("/models/scaled", min_worker=3, max_worker=2)) == (
        400,
        "BadRequestException",
        "max_worker cannot be less than min_worker.",
    )


def test_unregister_ends_the_processes(server: RunningServer, call: Management) -> None:
    call.post(url=archive(server, "leaving", "1.0", HANDLER % ""), initial_workers=2)
    pids = [worker["pid"] for worker in server.describe("leaving")[0]["workers"]]
    assert status(call.delete("/models/leaving")) == (200, 'Model "leaving" unregistered')
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert server.predict("leaving").status_code == 404


# The gate in front of it


def test_models_are_not_registered_unless_that_is_enabled(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "kept", HANDLER % "kept")
    with RunningServer({"kept": folder}, {"drain_timeout": 1}, flags=("--disable-token-auth",)) as server:
        server.wait_ready()
        call = Management(server)
        not_allowed = (
            405,
            "MethodNotAllowedException",
            "Requested method is not allowed, please refer to API document.",
        )
        assert error(call.post(url=str(folder), model_name="other")) == not_allowed
        assert error(call.delete("/models/kept")) == not_allowed
        assert call.put("/models/kept", min_worker=2, synchronous="true").status_code == 200
        assert call.put("/models/kept/1.0/set-default").status_code == 200
        assert server.predict("kept").text == "kept kept"
