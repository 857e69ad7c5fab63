"""Versions take each other's places: real servers, whose clients go on meanwhile, and whose workers are counted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

HANDLER = """
import time
from pathlib import Path


class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]
        loads = Path(__file__).parent / "loads"
        with loads.open("a") as file:
            file.write(".")
        if (Path(__file__).parent / f"fails {len(loads.read_text())}").exists():
            raise RuntimeError("no such weights")

    def handle(self, data, context):
        time.sleep(0.01)
        return [self.version] * len(data)
"""
#: The state of a sequence is the number of its steps; version 2 has it in a mapping. Sequence `stays` cannot move.
COUNTING = """
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]
        self.steps = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index)) for index in range(len(data))]

    def step(self, sequence_id):
        state = self.steps.get(sequence_id, {"id": sequence_id, "count": 0, "version": self.version})
        assert state["version"] == self.version
        state["count"] += 1
        self.steps[sequence_id] = state
        return f"{self.version}:{state['count']}"
"""
MIGRATING = (
    COUNTING
    + """
    def migrate(self, state, from_version):
        if state["id"].startswith("stays"):
            raise ValueError("it stays")
        return {**state, "version": self.version}
"""
)
STORED = """
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
batchSize: 4
handler:
  cache: {store: file}
"""


def version(folder: Path, name: str, workers: int = 1, handler: str = HANDLER, more: str = "") -> Path:
    made = model_folder(folder / name, "said", handler, f"minWorkers: {workers}\nmaxWorkers: {workers}\n{more}")
    (made / "MAR-INF").mkdir()
    model = {"modelName": "said", "modelVersion": name, "handler": "handler.py", "configFile": "model-config.yaml"}
    (made / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
    return made


def register(server: RunningServer, folder: Path) -> None:
    answer = server.register(folder, model_name="said", initial_workers=0)
    assert answer.ok, answer.text


def roll_out(server: RunningServer, name: str) -> requests.Response:
    return requests.put(f"{server.management}/models/said/{name}/rollout", timeout=DEADLINE)


def restart(server: RunningServer, name: str) -> requests.Response:
    return requests.put(f"{server.management}/models/said/{name}/restart", timeout=DEADLINE)


def rollout(server: RunningServer) -> dict[str, Any]:
    answer: dict[str, Any] = requests.get(f"{server.management}/models/said/rollout", timeout=DEADLINE).json()
    return answer


def workers(server: RunningServer) -> dict[str, int]:
    """Return how many ready workers each version has."""
    versions = server.describe("said", "/all")
    return {each["modelVersion"]: sum(worker["status"] == "READY" for worker in each["workers"]) for each in versions}


class Clients:
    """Send one request after the other until they are told to stop; what they got is in ``answers``."""

    def __init__(self, send: Callable[[int], requests.Response], count: int) -> None:
        self.answers: Counter[str] = Counter()
        self._send = send
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._running: list[Future[None]] = [self._pool.submit(self._run, number) for number in range(count)]

    def _run(self, number: int) -> None:
        while not self._stopping.is_set():
            answer = self._send(number)
            cause = answer.headers.get("ts-error-cause")
            self.answers[answer.text if answer.ok else f"{answer.status_code} {cause}"] += 1

    def stop(self) -> Counter[str]:
        self._stopping.set()
        for each in self._running:
            each.result(DEADLINE)
        self._pool.shutdown()
        return self.answers


@contextmanager
def counted_processes(server: RunningServer) -> Iterator[list[int]]:
    """Count worker processes again and again; the list has the greatest number afterwards."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], len(server.workers()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def test_a_version_takes_the_places_one_by_one_and_no_request_fails(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1", 3)}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2", 3))
        assert rollout(server) == {}
        clients = Clients(lambda number: server.predict("said"), 4)
        with counted_processes(server) as most:
            answer = roll_out(server, "2")
        told = {"version": "2", "from": "1", "state": "done", "taken": 3, "places": 3}
        assert (answer.status_code, answer.json()) == (200, told)
        assert rollout(server) == told
        assert most[0] <= 3
        assert workers(server) == {"1": 0, "2": 3}
        assert set(clients.stop()) == {"1", "2"}
        assert server.predict("said").text == "2"
        assert server.describe("said")[0]["modelVersion"] == "2"
        assert server.metric("ts_rollouts_total", model_name="said", result="done") == 1
        # It has everything already; and the old one takes its places back the same way.
        assert roll_out(server, "2").json() == told
        assert roll_out(server, "1").json()["from"] == "2"
        assert workers(server) == {"1": 3, "2": 0}
        assert server.predict("said").text == "1"


def test_requests_wait_where_there_is_one_place(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1")}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2"))
        clients = Clients(lambda number: server.predict("said"), 4)
        eventually(lambda: clients.answers["1"] > 10, "the old version answers")
        with counted_processes(server) as most:
            assert roll_out(server, "2").ok
        assert most[0] == 1
        answered = clients.answers["2"]
        eventually(lambda: clients.answers["2"] > answered, "the new version answers")
        assert set(clients.stop()) == {"1", "2"}
        named = server.predict("said/1")
        assert (named.status_code, named.headers["ts-error-cause"]) == (503, "no_worker")


@pytest.mark.parametrize("places", [1, 2])
def test_a_version_that_does_not_come_up_leaves_everything_as_it_was(tmp_path: Path, places: int) -> None:
    with RunningServer({"said": version(tmp_path, "1", places)}) as server:
        server.wait_ready()
        broken = version(tmp_path, "2", places)
        (broken / "fails 1").touch()
        register(server, broken)
        clients = Clients(lambda number: server.predict("said"), 4)
        answer = roll_out(server, "2")
        assert answer.status_code == 500
        assert answer.headers["ts-error-cause"] == "rollout_stopped"
        assert "RuntimeError: no such weights" in answer.json()["message"]
        assert rollout(server)["state"] == "stopped"
        assert "no such weights" in rollout(server)["why"]
        assert workers(server) == {"1": places, "2": 0}
        assert set(clients.stop()) == {"1"}
        # Once it is mended, it takes the places.
        (broken / "fails 1").unlink()
        assert roll_out(server, "2").ok
        assert workers(server) == {"1": 0, "2": places}


def test_a_rollout_that_stops_half_way_gives_the_places_back(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1", 3)}) as server:
        server.wait_ready()
        new = version(tmp_path, "2", 3)
        (new / "fails 3").touch()
        register(server, new)
        clients = Clients(lambda number: server.predict("said"), 4)
        assert roll_out(server, "2").status_code == 500
        assert rollout(server) | {"why": ""} == {
            "version": "2", "from": "1", "state": "stopped", "taken": 0, "places": 3, "why": "",
        }  # fmt: skip
        assert "no such weights" in rollout(server)["why"]
        assert workers(server) == {"1": 3, "2": 0}
        traffic = requests.get(f"{server.management}/models/said/traffic", timeout=DEADLINE).json()
        assert (traffic["default"], traffic["weights"]) == ("1", {})
        (new / "fails 3").unlink()
        assert roll_out(server, "2").ok
        assert workers(server) == {"1": 0, "2": 3}
        assert set(clients.stop()) == {"1", "2"}


def test_a_rollout_that_stops_leaves_weights_and_canary(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1")}) as server:
        server.wait_ready()
        new = version(tmp_path, "2")
        (new / "fails 2").touch()
        assert server.register(new, model_name="said", initial_workers=1).ok
        traffic = f"{server.management}/models/said/traffic"
        assert requests.put(traffic, json={"canary": {"version": "2", "steps": [5]}}, timeout=DEADLINE).ok
        assert roll_out(server, "2").status_code == 500
        assert workers(server) == {"1": 1, "2": 1}
        shown = requests.get(traffic, timeout=DEADLINE).json()
        assert shown["weights"] == {"1": 95, "2": 5}
        assert [each["decision"] for each in shown["decisions"]] == ["begun"]

        def is_judged() -> bool:
            server.predict("said")
            now: str = requests.get(traffic, timeout=DEADLINE).json()["canary"]["now"]
            return "of 600 requests compared" in now

        eventually(is_judged, "the canary is judged")
        (new / "fails 2").unlink()
        assert roll_out(server, "2").ok
        shown = requests.get(traffic, timeout=DEADLINE).json()
        assert (shown["default"], shown["weights"]) == ("2", {})
        assert shown["decisions"][-1]["why"] == "a rollout has made version 2 the default one"


@pytest.mark.parametrize("places", [1, 2])
def test_stored_sequences_go_on_with_the_new_version(tmp_path: Path, places: int) -> None:
    with RunningServer({"said": version(tmp_path, "1", places, COUNTING, STORED)}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2", places, MIGRATING, STORED))
        counts: Counter[int] = Counter()

        def step(number: int) -> requests.Response:
            answer = server.predict("said", "", sequence=f"s{number}")
            counts[number] += 1
            assert answer.text.partition(":")[2] == str(counts[number]), answer.text
            return answer

        clients = Clients(step, 8)
        eventually(lambda: min(counts[number] for number in range(8)) > 2, "all sequences have begun")
        assert roll_out(server, "2").ok
        goal = counts.copy()
        eventually(lambda: all(counts[number] > goal[number] + 1 for number in range(8)), "all sequences go on")
        clients.stop()
        assert all(server.predict("said", "", sequence=f"s{number}").text.startswith("2:") for number in range(8))
        assert workers(server) == {"1": 0, "2": places}


def test_the_last_worker_waits_for_sequences_that_cannot_move(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1", 2, COUNTING, STORED)}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2", 2, MIGRATING, STORED))
        stuck = ("stays 1", "stays 2")  # one with each worker
        for sequence in (*stuck, "moves"):
            assert server.predict("said", "", sequence=sequence).text == "1:1"
        with ThreadPoolExecutor(1) as pool:
            rolling = pool.submit(roll_out, server, "2")
            eventually(lambda: rollout(server).get("taken") == 1, "the first place is taken")
            assert server.predict("said", "", sequence="moves").text == "2:2"
            # Their own version still runs them, and waits for their end.
            for count in (2, 3, 4):
                assert [server.predict("said", "", sequence=each).text for each in stuck] == [f"1:{count}"] * 2
            assert not rolling.done()
            for each in stuck:
                server.predict("said", "", sequence=each, headers={"ts_request_sequence_end": "true"})
            assert rolling.result(DEADLINE).ok
        assert workers(server) == {"1": 0, "2": 2}


def test_one_place_is_not_taken_from_sequences_that_the_new_version_does_not_continue(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1", 1, COUNTING, STORED)}) as server:
        server.wait_ready()
        assert server.predict("said", "", sequence="a").text == "1:1"
        register(server, version(tmp_path, "3", 1, COUNTING, STORED))
        answer = roll_out(server, "3")
        assert answer.status_code == 500
        assert "does not continue the sequences of version 1 (open: 1)" in answer.json()["message"]
        assert server.predict("said", "", sequence="a").text == "1:2"
        assert workers(server) == {"1": 1, "3": 0}


def test_a_budget_with_room_for_the_old_version_alone_is_enough(tmp_path: Path) -> None:
    heavy = HANDLER.replace("self.version =", 'self.weights = bytes(b"w") * 60_000_000\n        self.version =', 1)
    with RunningServer(
        {"said": version(tmp_path, "1", 2, heavy, "memory: 90MB\n")}, {"memory_budget": "220MB"}
    ) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2", 2, heavy, "memory: 90MB\n"))
        clients = Clients(lambda number: server.predict("said"), 4)
        assert roll_out(server, "2").ok
        assert workers(server) == {"1": 0, "2": 2}
        assert set(clients.stop()) == {"1", "2"}


def test_workers_are_replaced_by_new_processes_one_by_one(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1", 2, COUNTING, STORED)}) as server:
        server.wait_ready()
        counts: Counter[int] = Counter()

        def step(number: int) -> requests.Response:
            answer = server.predict("said", "", sequence=f"s{number}")
            counts[number] += 1
            assert answer.text == f"1:{counts[number]}", answer.text
            return answer

        before = set(server.workers())
        clients = Clients(step, 4)
        with counted_processes(server) as most:
            answer = restart(server, "1")
        assert answer.json() == {"version": "1", "from": "1", "state": "done", "taken": 2, "places": 2}
        assert most[0] <= 2
        clients.stop()
        assert len(set(server.workers()) - before) == 2
        assert server.metric("ts_rollouts_total", model_name="said", result="done") == 1


def test_a_restart_ends_with_the_first_worker_that_does_not_come_up(tmp_path: Path) -> None:
    said = version(tmp_path, "1", 2)
    with RunningServer({"said": said}) as server:
        server.wait_ready()
        before = set(server.workers())
        (said / "fails 3").touch()
        clients = Clients(lambda number: server.predict("said"), 2)
        answer = restart(server, "1")
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "rollout_stopped")
        assert "did not come up again: " in answer.json()["message"]
        assert "no such weights" in answer.json()["message"]
        assert (rollout(server)["state"], rollout(server)["taken"]) == ("stopped", 0)
        eventually(lambda: workers(server) == {"1": 2}, "it comes up at the next attempt")
        assert len(before & set(server.workers())) == 1
        assert set(clients.stop()) == {"1"}


def test_mistakes_are_told_and_change_nothing(tmp_path: Path) -> None:
    with RunningServer({"said": version(tmp_path, "1")}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "kept", 1, COUNTING, STORED.replace("file", "memory")))
        register(server, version(tmp_path, "2"))
        for named, status, told in (
            ("9", 404, "Model version: 9 does not exist"),
            ("kept", 400, "take requests of different kinds"),
        ):
            answer = roll_out(server, named)
            assert (answer.status_code, told in answer.json()["message"]) == (status, True), answer.text
        assert restart(server, "9").status_code == 404
        answer = restart(server, "kept")
        assert (answer.status_code, "a restart would lose" in answer.json()["message"]) == (400, True)
        assert requests.get(f"{server.management}/models/other/rollout", timeout=DEADLINE).status_code == 404
        url = f"{server.management}/models/said"
        forced = requests.put(f"{url}/kept/set-default", params={"force": "true"}, timeout=DEADLINE)  # it has no worker
        assert forced.ok, forced.text
        register(server, version(tmp_path, "kept 2", 1, COUNTING, STORED))
        answer = roll_out(server, "kept 2")
        assert (answer.status_code, "in the memory of its workers" in answer.json()["message"]) == (400, True)
        assert workers(server) == {"1": 1, "kept": 0, "2": 0, "kept 2": 0}


def test_there_is_one_rollout_of_a_model_at_a_time(tmp_path: Path) -> None:
    slow = HANDLER.replace("self.version =", "time.sleep(2)\n        self.version =", 1)
    with RunningServer({"said": version(tmp_path, "1")}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2", 1, slow))
        register(server, version(tmp_path, "3"))
        with ThreadPoolExecutor(1) as pool:
            rolling = pool.submit(roll_out, server, "2")
            eventually(lambda: rollout(server).get("state") == "under way", "it is under way")
            answer = roll_out(server, "3")
            assert (answer.status_code, answer.headers["ts-error-cause"]) == (409, "rollout_under_way")
            traffic = f"{server.management}/models/said/traffic"
            for method, body in (
                ("PUT", {"weights": {"1": 50, "3": 50}}),
                ("PUT", {"canary": {"version": "3"}}),
                ("DELETE", None),
            ):
                answer = requests.request(method, traffic, json=body, params={"force": "true"}, timeout=DEADLINE)
                assert (answer.status_code, answer.headers["ts-error-cause"]) == (409, "rollout_under_way"), body
                assert "The rollout of version 2 of model said is under way" in answer.json()["message"]
            assert rolling.result(DEADLINE).ok
        assert workers(server) == {"1": 0, "2": 1, "3": 0}
