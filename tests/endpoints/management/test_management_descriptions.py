"""The management API: models described and listed, to the order of the keys."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status
from tests.endpoints.management.management_requests import manage

DESCRIPTION = """[
  {
    "modelName": "noop",
    "modelVersion": "1.0",
    "modelUrl": "noop.mar",
    "runtime": "python",
    "minWorkers": 1,
    "maxWorkers": 1,
    "batchSize": 1,
    "maxBatchDelay": 100,
    "responseTimeout": 120,
    "startupTimeout": 120,
    "maxRetryTimeoutInSec": 300,
    "clientTimeoutInMills": 0,
    "parallelType": "",
    "parallelLevel": 0,
    "deviceType": "cpu",
    "continuousBatching": false,
    "useJobTicket": false,
    "useVenv": false,
    "stateful": false,
    "sequenceMaxIdleMSec": 0,
    "sequenceTimeoutMSec": 0,
    "maxNumSequence": 0,
    "maxSequenceJobQueueSize": 0,
    "loadedAtStartup": false,
    "workers": [
      {
        "id": "9000",
        "startTime": "2024-05-30T21:41:47.098Z",
        "status": "READY",
        "memoryUsage": 89247744,
        "pid": 19946,
        "gpu": false,
        "gpuUsage": "N/A"
      }
    ],
    "jobQueueStatus": {
      "remainingCapacity": 100,
      "pendingRequests": 0
    }
  }
]
"""


async def test_describe_is_torchserves_to_the_letter(serving):
    for path in ("/models/noop", "/models/noop/1.0", "/models/noop/"):
        answer = await manage(serving, "GET", path)
        assert (answer.status, answer.body.decode()) == (200, DESCRIPTION)


async def test_describe_all_versions(start):
    serving = await start(FakeServing([FakeModel("m", "1"), FakeModel("m", "2"), FakeModel("n", "3")]))
    answer = await manage(serving, "GET", "/models/m/all")
    assert [entry["modelVersion"] for entry in answer.json()] == ["1", "2"]


async def test_describe_devices_sequences_and_workers_without_a_process(start):
    model = FakeModel("m", stateful=True)
    model.config = replace(model.config, device_type="gpu", device_ids=(2, 3))
    started = datetime(2024, 5, 30, 23, 41, 47, 5000, timezone(timedelta(hours=2)))
    model.workers = [worker_status(started_at=started, ready=False, pid=-1, memory=0, gpu=True, gpu_usage="x")]
    serving = await start(FakeServing([model]))
    entry = (await manage(serving, "GET", "/models/m")).json()[0]
    keys = list(entry)
    assert keys[keys.index("deviceType") + 1] == "deviceIds"
    assert entry["deviceIds"] == [2, 3]
    assert entry["stateful"] is True
    assert entry["sequenceMaxIdleMSec"] == 60000
    assert entry["workers"][0]["startTime"] == "2024-05-30T21:41:47.005Z"
    assert (entry["workers"][0]["status"], entry["workers"][0]["pid"]) == ("UNLOADING", -1)
    model.workers = [worker_status(ready=False, waits=True)]
    entry = (await manage(serving, "GET", "/models/m")).json()[0]
    assert entry["workers"][0]["status"] == "WAITING"


async def test_a_worker_whose_memory_on_gpus_is_known_tells_it(start):
    model = FakeModel("m")
    model.workers = [worker_status(gpu=True, gpu_memory=5 << 30), worker_status(gpu=True)]
    serving = await start(FakeServing([model]))
    first, second = (await manage(serving, "GET", "/models/m")).json()[0]["workers"]
    assert first["gpuMemoryUsage"] == 5 << 30
    assert list(second) == ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"]


@pytest.mark.parametrize(("metadata", "shown"), [({"a": [1]}, {"a": [1]}), ([1], {}), ("text", {}), (None, {})])
async def test_what_the_handler_says_of_itself_comes_last(serving, metadata, shown):
    serving.registry.model.metadata = metadata
    entry = (await manage(serving, "GET", "/models/noop?customized=true")).json()[0]
    assert list(entry)[-1] == "customizedMetadata"
    assert entry["customizedMetadata"] == shown


async def test_a_handler_that_fails_to_describe_its_model(serving):
    serving.registry.model.metadata_error = "Prediction failed"
    answer = await manage(serving, "GET", "/models/noop?customized=true")
    assert answer.status == 503
    assert answer.json()["message"] == 'The handler of model "noop" failed to describe it: Prediction failed'


async def test_no_worker_to_ask(serving):
    serving.registry.model.workers = []
    answer = await manage(serving, "GET", "/models/noop?customized=true")
    assert answer.status == 503
    assert answer.json()["type"] == "ServiceUnavailableException"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/models/foo", "Model not found: foo"),
        ("/models/foo/all", "Model not found: foo"),
        ("/models/noop/9", "Model version: 9 does not exist for model: noop"),
    ],
)
async def test_describe_unknown(serving, path, message):
    answer = await manage(serving, "GET", path)
    assert (answer.status, answer.json()["message"]) == (404, message)


@pytest.mark.parametrize(
    ("query", "names", "token"),
    [
        ("", ["a", "b", "c"], None),
        ("?limit=2", ["a", "b"], "2"),
        ("?limit=2&next_page_token=2", ["c"], None),
        ("?limit=1&next_page_token=2", ["c"], "3"),
        ("?limit=1&next_page_token=3", [], None),
        ("?limit=3", ["a", "b", "c"], "3"),
        ("?limit=&next_page_token=", ["a", "b", "c"], None),
        ("?limit=101", ["a", "b", "c"], None),
        ("?limit=-1", ["a", "b", "c"], None),
        ("?next_page_token=99", [], None),
    ],
)
async def test_list_pages(start, query, names, token):
    models = [FakeModel("c"), FakeModel("a", "2"), FakeModel("a", "1"), FakeModel("b")]
    models[2].url = "not-the-default.mar"
    serving = await start(FakeServing(models))
    answer = await manage(serving, "GET", f"/models{query}")
    page = {} if token is None else {"nextPageToken": token}
    page["models"] = [{"modelName": name, "modelUrl": f"{name}.mar"} for name in names]
    assert (answer.status, answer.json()) == (200, page)
    assert list(answer.json()) == list(page)


@pytest.mark.parametrize("query", ["limit=x", "next_page_token=x", "next_page_token=-1"])
async def test_list_with_wrong_numbers(serving, query):
    answer = await manage(serving, "GET", f"/models?{query}")
    assert answer.status == 400
    assert query.split("=")[0] in answer.json()["message"]
