"""The repository: what can be served, loading and unloading."""

import asyncio
import json

import pytest
from tests.apis.open_inference.behaviours import INFER
from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.serving.errors import ModelNotFound


async def test_the_index_has_what_is_served_and_what_is_stored(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    starting = FakeModel("starting")
    starting.workers = [worker_status(ready=False)]
    broken = FakeModel("broken")
    broken.workers = [worker_status(ready=False, gave_up=True, failure="no weights")]
    failing = FakeModel("failing")
    failing.workers = [worker_status(ready=False), worker_status(ready=False, failure="no weights")]
    unwell = FakeModel("unwell")
    unwell.is_well = False
    serving = await start(FakeServing([FakeModel(), starting, broken, failing, unwell]))
    for body in (b"", b"{}", b'{"ready": null}'):
        entries = (await serving.request("POST", "/v2/repository/index", data=body)).json()
        assert {(entry["name"], entry["version"], entry["state"], entry["reason"]) for entry in entries} == {
            ("noop", "1.0", "READY", ""),
            ("starting", "1.0", "LOADING", ""),
            ("broken", "1.0", "UNAVAILABLE", "its workers do not start: no weights"),
            ("failing", "1.0", "LOADING", "the last attempt failed: no weights"),
            ("unwell", "1.0", "UNAVAILABLE", "it says that it is not ready"),
            ("other", "", "UNAVAILABLE", "not loaded"),
        }
    entries = (await serving.request("POST", "/v2/repository/mine/index", data=b'{"ready": true}')).json()
    assert [entry["name"] for entry in entries] == ["noop"]
    assert (await serving.request("POST", "/v2/repository/index", data=b'{"ready": 1}')).status == 400


async def test_the_index_has_models_by_the_names_of_their_own_files(start, tmp_path):
    settings = {"name": "mnist-svm", "implementation": "mlserver_sklearn.SKLearnModel"}
    for folder, name in (("mnist-svm", "mnist-svm"), ("other_folder", "mnist-lr")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model-settings.json").write_text(json.dumps(settings | {"name": name}))
    served, downloaded = FakeModel("mnist-svm"), FakeModel("renamed")
    served.url, downloaded.url = str(tmp_path / "mnist-svm"), "https://h/x.mar?y"
    (tmp_path / "x.mar").write_bytes(b"")
    serving = await start(FakeServing([served, downloaded]))
    entries = (await serving.request("POST", "/v2/repository/index")).json()
    assert [(entry["name"], entry["state"]) for entry in entries] == [
        ("mnist-svm", "READY"),
        ("renamed", "READY"),
        ("mnist-lr", "UNAVAILABLE"),
    ]
    await serving.request("POST", "/v2/repository/models/mnist-lr/load")
    assert serving.registry.requests == [("other_folder", "mnist-lr", False, False)]
    (tmp_path / "other_folder" / "model-settings.json").write_text(json.dumps(settings | {"name": "mnist-forest"}))
    entries = (await serving.request("POST", "/v2/repository/index")).json()
    assert entries[-1]["name"] == "mnist-forest"


async def test_a_stored_model_is_loaded_by_its_name(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    serving = await start()
    answer = await serving.request("POST", "/v2/repository/models/other/load", data=b"{}")
    assert (answer.status, answer.body) == (200, b"")
    assert serving.registry.requests == [("other.mar", "other", False, False)]
    answer = await serving.request("POST", "/v2/repository/models/ghost/load")
    assert (answer.status, answer.json()) == (404, {"error": "Model ghost not found"})
    body = b'{"parameters": {"config": "{}"}}'
    assert (await serving.request("POST", "/v2/repository/models/other/load", data=body)).status == 501


async def test_a_model_that_is_served_is_loaded_again(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True, chosen=True)
    serving = await start(FakeServing(saved=[saved]))
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 200
    assert serving.registry.requests == [("/models/noop", "noop", True, True)]


async def test_a_model_whose_workers_fail_to_start_keeps_nobody_waiting(start):
    failing = FakeModel()
    failing.is_loaded = False
    failing.workers = [worker_status(ready=False, failure="no weights")]
    serving = await start(FakeServing([failing]))
    answer = await serving.request("POST", INFER, data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"]) == (503, "no_worker")
    assert answer.json() == {"error": 'Model "noop" has no worker that takes requests.'}
    assert failing.calls == []


@pytest.mark.parametrize("other", [worker_status(), worker_status(ready=False)], ids=["ready", "loading"])
async def test_a_request_waits_while_one_worker_is_ready_or_still_loads(start, other):
    model = FakeModel()
    model.workers = [worker_status(ready=False, failure="no weights"), other]
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", INFER, data=b"x")
    assert (answer.status, answer.body) == (200, b"x")


async def test_all_versions_are_unloaded_and_come_back_from_where_they_were(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True)
    registry = FakeServing([FakeModel(), FakeModel("noop", "2.0")], saved=[saved])
    serving = await start(registry)
    body = b'{"parameters": {"unload_dependents": false}}'
    assert (await serving.request("POST", "/v2/repository/models/noop/unload", data=body)).status == 200
    assert registry.registered == []
    registry.saved = []
    assert (await serving.request("POST", "/v2/repository/index")).json() == [
        {"name": "noop", "version": "1.0", "state": "UNAVAILABLE", "reason": "unloaded"}
    ]
    answer = await serving.request("POST", "/v2/repository/models/noop/unload")
    assert (answer.status, answer.json()) == (404, {"error": "Model noop not found"})
    await serving.request("POST", "/v2/repository/models/noop/load")
    assert registry.requests == [("unload", "noop", None), ("/models/noop", "noop", True, False)]


async def test_while_a_model_is_unloaded_the_index_says_so(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True)
    registry = FakeServing(saved=[saved], hold=asyncio.Event())
    serving = await start(registry)
    unloading = asyncio.create_task(serving.request("POST", "/v2/repository/models/noop/unload"))
    while not registry.requests:
        await asyncio.sleep(0)
    registry.registered, registry.saved = [], []  # it is gone for all that comes, and finishes what it has
    assert (await serving.request("POST", "/v2/repository/index")).json() == [
        {"name": "noop", "version": "1.0", "state": "UNLOADING", "reason": ""}
    ]
    assert (await serving.request("POST", INFER, data=b"x")).status == 404
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 409
    registry.registered = [FakeModel()]
    registry.hold.set()
    assert (await unloading).status == 200


async def test_requests_that_name_no_version_are_for_the_latest(start):
    registry = FakeServing([FakeModel(version="1.0"), FakeModel(version="2.0")])
    serving = await start(registry)
    await serving.request("POST", INFER, data=b"x")
    assert [len(model.calls) for model in registry.registered] == [0, 1]
    assert registry.registered[1].calls[0].by_default
    registry.registered[1].workers = [worker_status(ready=False)]
    assert (await serving.request("GET", "/v2/models/noop/ready")).status == 400
    registry.registered[1].declared = {"platform": "that of 2.0"}
    for path in ("", "/config"):
        assert (await serving.request("GET", f"/v2/models/noop{path}")).json()["platform"] == "that of 2.0"


async def test_a_model_that_cannot_be_loaded_says_why(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    serving = await start(FakeServing(failure=ModelNotFound("other")))
    assert (await serving.request("POST", "/v2/repository/models/other/load")).status == 404
