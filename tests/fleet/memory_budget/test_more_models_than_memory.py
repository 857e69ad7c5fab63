"""Models that do not fit together share a budget: a real server, whose workers are measured from outside."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e import orders
from tests.e2e.gate import Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

from torchserve_py.fleet.memory_budget.worker_memory import measure

BUDGET = 210_000_000
#: A worker of such a model has 45 to 55 MB (libraries are shared): three or four fit.
LARGE = orders.HANDLER.replace(
    "        self.directory =", '        self.weights = bytes(b"w") * 40_000_000\n        self.directory ='
)
ON_DEMAND = "minWorkers: 0\nloading: on_demand\n"
#: Appended: loading takes longer than a client waits.
SLOWLY = """

class SlowHandler(OrderHandler):
    def initialize(self, context):
        super().initialize(context)
        time.sleep(1.5)


_service = SlowHandler()


def handle(data, context):
    if data is None:
        return _service.initialize(context)
    return _service.handle(data, context)
"""
PINNED = [f"pinned{number}" for number in range(3)]
NAMES = [f"m{number}" for number in range(6)]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    return {
        **{name: model_folder(tmp_path, name, LARGE, ON_DEMAND) for name in NAMES},
        **{name: model_folder(tmp_path, name, LARGE, f"{ON_DEMAND}pin: true\n") for name in PINNED},
        "slow": model_folder(tmp_path, "slow", LARGE + SLOWLY, ON_DEMAND),
        "huge": model_folder(tmp_path, "huge", LARGE, f"{ON_DEMAND}memory: 5GB\n"),
    }


@pytest.fixture
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(folders, {"memory_budget": BUDGET}) as server:
        server.wait_ready()
        yield server


def counted(server: RunningServer, name: str) -> float:
    """Return the sum of a metric over all models."""
    lines = requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def pids(server: RunningServer, model: str) -> list[int]:
    """Return the processes of a model's workers that are ready."""
    return [each["pid"] for each in server.describe(model)[0]["workers"] if each["status"] == "READY"]


class Watcher:
    """Measures all workers of a server together, again and again, from a thread."""

    def __init__(self, server: RunningServer) -> None:
        self.most = 0
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            try:
                before = self._workers()
                sizes = measure({pid: (pid,) for pid in before})
                stayed = before == self._workers()
            except psutil.NoSuchProcess:
                continue
            if stayed:  # else one that has gone may count, and its share of what all share once more with the others
                self.most = max(self.most, sum(each.now for each in sizes.values()))

    def _workers(self) -> list[int]:
        return [each.pid for each in self._server.workers()]


def test_all_requests_are_answered_and_the_budget_holds(server: RunningServer) -> None:
    draw = random.Random(7)
    asked = [draw.choices(NAMES, [1 / (1 + number) for number in range(len(NAMES))])[0] for _ in range(120)]
    with Watcher(server) as watcher, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda name: server.predict(name, f"print {name}"), asked))
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.text for answer in answers] == [f"print {name}" for name in asked]
    assert watcher.most <= BUDGET
    assert counted(server, "ts_model_evictions_total") > 0
    assert counted(server, "ts_model_loads_total") >= len(set(asked))
    assert counted(server, "ts_model_misses_total") >= len(set(asked))
    assert counted(server, "ts_memory_budget_bytes") == BUDGET
    assert 0 < counted(server, "ts_memory_budget_used_bytes") <= BUDGET


def test_a_model_that_works_and_one_that_is_pinned_are_not_unloaded(
    server: RunningServer, folders: dict[str, Path]
) -> None:
    assert server.predict("pinned0").status_code == 200
    pinned = pids(server, "pinned0")
    gate = Gate(folders["m0"])
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(server.predict, "m0", "wait gate")
        gate.wait_until_reached()
        busy = pids(server, "m0")
        assert {server.predict(name).status_code for name in NAMES[1:]} == {200}
        assert pids(server, "m0") == busy
        gate.open()
        assert working.result().text == "wait gate"
    assert pids(server, "pinned0") == pinned
    assert "room for model" in server.log()


def test_who_cannot_be_in_time_is_told_at_once_and_finds_it_loaded_later(server: RunningServer) -> None:
    assert server.predict("slow").status_code == 200  # now it is known how long loading takes
    eventually(
        lambda: {server.predict(name).status_code for name in NAMES} == {200} and not pids(server, "slow"),
        "others have the memory",
    )
    refused = server.predict("slow", headers={"ts_request_timeout": "1000"})
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "not_loaded")
    seconds = int(refused.headers["retry-after"])
    assert seconds >= 2
    assert refused.json()["message"] == (
        f'Model "slow" is not loaded; that takes about {seconds} s more, longer than the request may wait.'
    )
    again = {"ts_request_timeout": "1000"}
    eventually(lambda: server.predict("slow", headers=again).status_code == 200, "it is loaded for who comes again")


def test_where_there_never_will_be_room_nobody_waits(server: RunningServer) -> None:
    assert {server.predict(f"pinned{number}").status_code for number in range(3)} == {200}
    refused = server.predict("m0")
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "not_loaded")


def test_a_model_that_is_larger_than_the_budget_does_not_start(server: RunningServer) -> None:
    refused = server.predict("huge", headers={"ts_request_timeout": "60000"})
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "no_worker")
    assert "it takes 5 GB, and memory_budget is 210 MB" in server.log()
    assert server.predict("m0").status_code == 200


def test_a_worker_that_was_killed_gives_its_memory_back(server: RunningServer) -> None:
    for name in NAMES[:3]:
        assert server.predict(name).status_code == 200
    killed = {pid for name in NAMES[:3] for pid in pids(server, name)}
    for pid in killed:
        psutil.Process(pid).kill()
    eventually(
        lambda: killed.isdisjoint(pid for name in NAMES[:3] for pid in pids(server, name)), "the server knows their end"
    )
    assert {server.predict(name).status_code for name in NAMES} == {200}
    assert server.predict(NAMES[0]).status_code == 200


def test_a_model_that_is_unregistered_and_registered_again_has_room(
    server: RunningServer, folders: dict[str, Path]
) -> None:
    assert server.predict("m0").status_code == 200
    assert requests.delete(f"{server.management}/models/m0", timeout=DEADLINE).status_code == 200
    assert (
        'ts_model_loads_total{model_name="m0"' not in requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text
    )
    url = f"{server.management}/models?url={folders['m0']}&model_name=m0"
    assert requests.post(url, timeout=DEADLINE).status_code == 200
    assert server.predict("m0").status_code == 200
