"""Workers come while requests wait and go when they do not; a model without workers loads on the first request."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e import orders
from tests.e2e.recorder import ended, recorder
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: Fails to load until a file ``mended`` is in the model's folder.
BROKEN = """
import os


class BrokenHandler:
    def initialize(self, context):
        if not os.path.exists(os.path.join(context.system_properties["model_dir"], "mended")):
            raise RuntimeError("not mended")

    def handle(self, data, context):
        return ["mended"] * len(data)
"""

#: Counts the requests of each sequence.
COUNTING = """
from ts.sequence import SequenceCache


class CountingHandler:
    def initialize(self, context):
        self.counts = SequenceCache(context)

    def handle(self, data, context):
        return [self.count(context.get_sequence_id(index)) for index in range(len(data))]

    def count(self, sequence_id):
        self.counts[sequence_id] = self.counts.get(sequence_id, 0) + 1
        return str(self.counts[sequence_id])
"""

ONE_TO_THREE = "minWorkers: 1\nmaxWorkers: 3\nscaling: {targetWaitMSec: 200, downAfterSec: 2}\n"
ON_DEMAND = "minWorkers: 0\nmaxWorkers: 2\nscaling: {targetWaitMSec: 200, downAfterSec: 2, idleTimeoutSec: 2}\n"
SEQUENCES = ON_DEMAND + "batchSize: 1\nmaxSequenceJobQueueSize: 20\n"

Send = Callable[..., "Future[requests.Response]"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {
        "busy": model_folder(directory, "busy", orders.HANDLER, ONE_TO_THREE),
        "rare": model_folder(directory, "rare", orders.HANDLER, ON_DEMAND),
        "broken": model_folder(directory, "broken", BROKEN, ON_DEMAND),
        "stateful": recorder(directory, "stateful", SEQUENCES),
        "fixed": model_folder(directory, "fixed", orders.HANDLER, "minWorkers: 1\nmaxWorkers: 3\n"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(folders) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def send(server: RunningServer) -> Iterator[Send]:
    """Post in the background; arguments as those of `RunningServer.predict`."""
    with ThreadPoolExecutor(max_workers=30) as pool:
        yield lambda *args, **more: pool.submit(server.predict, *args, **more)


def workers(server: RunningServer, model: str) -> int:
    """How many workers of the model are ready."""
    return sum(each["status"] == "READY" for each in server.describe(model)[0]["workers"])


def wait_for(server: RunningServer, model: str, count: int) -> None:
    eventually(lambda: workers(server, model) == count, f"{model} has {count} workers")


def scalings(server: RunningServer, model: str, reason: str) -> float:
    return server.metric("ts_scaling_total", model_name=model, reason=reason)


def test_a_model_loads_on_the_first_request_and_unloads_when_there_are_no_more(server: RunningServer) -> None:
    wait_for(server, "rare", 0)
    assert requests.get(f"{server.inference}/v2/models/rare/ready", timeout=DEADLINE).status_code == 200
    assert requests.get(f"{server.inference}/ping", timeout=DEADLINE).status_code == 200
    answer = server.predict("rare", "hello")
    assert (answer.status_code, answer.text) == (200, "hello")
    assert server.metric("ts_workers_wanted", model_name="rare") == 1
    wait_for(server, "rare", 0)
    eventually(lambda: server.metric("ts_workers_wanted", model_name="rare") == 0, "no worker is wanted")
    assert scalings(server, "rare", "request") == scalings(server, "rare", "idle") == 1
    assert "Model rare version 1.0: from 0 to 1 workers: 1 request waits" in server.log()
    assert "Model rare version 1.0: from 1 to 0 workers: no request for" in server.log()
    assert server.predict("rare", "again").status_code == 200


def test_workers_come_while_requests_wait_and_go_when_they_do_not(server: RunningServer, send: Send) -> None:
    wait_for(server, "busy", 1)
    answers = []

    def more() -> bool:
        answers.extend(send("busy", "sleep 0.2") for _ in range(20 - sum(not each.done() for each in answers)))
        return workers(server, "busy") == 3

    eventually(more, "there are 3 workers")
    assert {each.result().status_code for each in answers} == {200}
    wait_for(server, "busy", 1)
    assert server.describe("busy")[0]["minWorkers"] == 1
    assert server.describe("busy")[0]["maxWorkers"] == 3
    assert scalings(server, "busy", "waiting") >= 1
    assert scalings(server, "busy", "spare") >= 1


def test_a_worker_that_is_killed_is_replaced(server: RunningServer) -> None:
    wait_for(server, "busy", 1)
    (before,) = server.describe("busy")[0]["workers"]
    psutil.Process(before["pid"]).kill()
    assert server.predict("busy", "hello").status_code in (200, 500)

    def is_back() -> bool:
        (now,) = server.describe("busy")[0]["workers"]
        return bool(now["status"] == "READY" and now["pid"] != before["pid"])

    eventually(is_back, "another process is ready")
    assert server.predict("busy", "hello").status_code == 200


def test_sequences_with_a_store_go_on_after_their_worker_was_not_needed(server: RunningServer, tmp_path: Path) -> None:
    sequences = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\n"
    store = f"handler: {{cache: {{store: file, path: {tmp_path / 'sequences.db'}}}}}\n"
    folder = model_folder(tmp_path, "stored", COUNTING, ON_DEMAND + sequences + store)
    assert "The first request starts one." in server.register(folder, initial_workers=0).text
    assert server.predict("stored", sequence="s").text == "1"
    wait_for(server, "stored", 0)
    assert server.predict("stored", sequence="s").text == "2"
    assert server.unregister("stored").status_code == 200


def test_sequences_in_memory_move_when_their_worker_is_not_needed(server: RunningServer, tmp_path: Path) -> None:
    sequences = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nbatchSize: 1\nmaxNumSequence: 20\n"
    folder = model_folder(tmp_path, "moving", COUNTING, ONE_TO_THREE + sequences)
    assert server.register(folder, initial_workers=3).status_code == 200
    names = [f"s{number}" for number in range(9)]
    assert {server.predict("moving", sequence=name).text for name in names} == {"1"}
    wait_for(server, "moving", 1)
    assert {server.predict("moving", sequence=name).text for name in names} == {"2"}
    assert server.metric("ts_sequences_moved_total", model_name="moving") >= 6
    assert server.unregister("moving").status_code == 200


def test_a_request_waits_within_its_own_limit(server: RunningServer, tmp_path: Path) -> None:
    slow = "import time\ntime.sleep(20)\ndef handle(data, context):\n    return data\n"
    config = "clientTimeoutInMills: 300\n" + ON_DEMAND
    assert server.register(model_folder(tmp_path, "slow", slow, config), initial_workers=0).status_code == 200
    assert server.predict("slow", "hello").status_code == 408
    assert server.unregister("slow").status_code == 200


def test_a_model_that_cannot_be_loaded_refuses_and_is_tried_again(
    server: RunningServer, folders: dict[str, Path]
) -> None:
    refused = server.predict("broken", "hello")
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "no_worker")
    assert requests.get(f"{server.inference}/v2/models/broken/ready", timeout=DEADLINE).status_code != 200
    eventually(lambda: not server.describe("broken")[0]["workers"], "the worker is no longer started")
    (folders["broken"] / "mended").touch()
    assert server.predict("broken", "hello").text == "mended"


def test_a_worker_with_an_open_sequence_stays(server: RunningServer, folders: dict[str, Path]) -> None:
    start = {"ts_request_sequence_start": "true"}
    assert server.predict("stateful", "a", sequence="s", headers=start).text == "a"
    looks = server.metric("ts_workers_ready", model_name="stateful")
    rare = scalings(server, "rare", "idle")
    server.predict("rare", "as long as this model takes to unload, the other one keeps its worker")
    eventually(lambda: scalings(server, "rare", "idle") > rare, "the other model is unloaded")
    assert server.predict("stateful", "b", sequence="s").text == "a,b"
    assert server.predict("stateful", "end", sequence="s").status_code == 200
    wait_for(server, "stateful", 0)
    assert looks == 1
    assert ended(folders["stateful"]) == {"s": ["ended"]}


def test_scaling_by_hand_sets_the_limits(server: RunningServer) -> None:
    assert server.scale("rare", 2).status_code == 200
    assert workers(server, "rare") == 2
    assert server.scale("rare", 0).status_code == 200
    refused = server.predict("rare", "hello")
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "no_worker")
    assert server.scale("rare", 0, max_worker=1).status_code == 200
    assert server.predict("rare", "hello").text == "hello"
    described = server.describe("rare")[0]
    assert (described["minWorkers"], described["maxWorkers"]) == (0, 1)


def test_a_model_can_be_unregistered_while_it_has_no_worker_and_while_it_loads(
    server: RunningServer, send: Send, tmp_path: Path
) -> None:
    slow = "import time\ntime.sleep(20)\ndef handle(data, context):\n    return data\n"
    folder = model_folder(tmp_path, "leaving", slow, ON_DEMAND)
    assert server.register(folder, initial_workers=0).status_code == 200
    assert server.unregister("leaving").status_code == 200
    assert server.register(folder, initial_workers=0).status_code == 200
    waiting = send("leaving", "hello")
    eventually(lambda: server.describe("leaving")[0]["workers"], "the model loads")
    assert server.unregister("leaving").status_code == 200
    assert waiting.result().headers["ts-error-cause"] == "unregistered"


def test_without_the_setting_the_number_is_fixed(server: RunningServer, send: Send) -> None:
    answers = [send("fixed", "sleep 0.1") for _ in range(30)]
    assert {each.result().status_code for each in answers} == {200}
    assert workers(server, "fixed") == 1
    assert "Model fixed version 1.0: from" not in server.log()
