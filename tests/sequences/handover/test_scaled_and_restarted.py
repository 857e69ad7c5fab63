"""Sequences in memory while workers come and go, with real processes: no step is lost, and none counts twice."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

COUNTING = """
import os
import time


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        time.sleep(0.002)
        answers = []
        for index in range(len(data)):
            state = context.state.get(index, {"count": 0})
            state["count"] += 1
            context.state[index] = state
            answers.append(f"{state['count']} {os.getpid()}")
        return answers
"""
CONFIG = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nbatchSize: 4\nmaxBatchDelay: 0\n"
ONE_BY_ONE = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nasyncCommunication: true\n"
ASYNCHRONOUS = (
    COUNTING.replace("def handle", "async def handle")
    .replace("import time", "import asyncio")
    .replace("time.sleep", "await asyncio.sleep")
)
TWO = "minWorkers: 2\nmaxWorkers: 2\n"


class Client(threading.Thread):
    """Counts steps of one sequence until it is stopped; ``wrong`` is the first answer that was not the next number."""

    def __init__(self, server: RunningServer, model: str, name: str) -> None:
        super().__init__(daemon=True)
        self.server, self.model, self.sequence = server, model, name
        self.steps, self.wrong = 0, ""
        self.processes: set[str] = set()
        self.longest = 0.0
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        with requests.Session() as session:
            url = f"{self.server.inference}/predictions/{self.model}"
            while not self.over.is_set() and not self.wrong:
                headers = {"ts_request_sequence_id": self.sequence, "ts_request_sequence_token": f"t-{self.sequence}"}
                headers["ts_request_step"] = str(self.steps + 1)
                began = time.monotonic()
                answer = session.post(url, data=b"", headers=headers, timeout=DEADLINE)
                self.longest = max(self.longest, time.monotonic() - began)
                count, _, process = answer.text.partition(" ")
                if answer.status_code != 200 or count != str(self.steps + 1):
                    self.wrong = f"{answer.status_code} after step {self.steps}: {answer.text}"
                self.steps += 1
                self.processes.add(process)

    def stop(self) -> None:
        self.over.set()
        self.join(DEADLINE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    models = {
        "counting": model_folder(tmp_path, "counting", COUNTING, CONFIG + TWO),
        "asynchronous": model_folder(tmp_path, "asynchronous", ASYNCHRONOUS, ONE_BY_ONE + TWO),
        "single": model_folder(tmp_path, "single", COUNTING, CONFIG),
    }
    with RunningServer(models) as server:
        server.wait_ready()
        yield server


def all_step_on(clients: list[Client]) -> bool:
    """Wait until each client has got further steps answered."""
    before = [client.steps for client in clients]
    eventually(
        lambda: all(client.steps > steps + 3 or client.wrong for client, steps in zip(clients, before, strict=True)),
        "all sequences go on",
    )
    return not any(client.wrong for client in clients)


def stop_all(clients: list[Client]) -> None:
    for client in clients:
        client.stop()
    assert [client.wrong for client in clients if client.wrong] == []


@pytest.mark.parametrize("model", ["counting", "asynchronous"])
def test_all_steps_count_once_while_workers_come_and_go(model: str, server: RunningServer) -> None:
    clients = [Client(server, model, f"s{number}") for number in range(16)]
    assert all_step_on(clients)
    for workers in (1, 3, 2):
        assert server.scale(model, workers).ok
        assert all_step_on(clients)
    restarted = requests.put(f"{server.management}/models/{model}/1.0/restart", timeout=DEADLINE)
    assert (restarted.status_code, restarted.json()["state"]) == (200, "done"), restarted.text
    assert all_step_on(clients)
    stop_all(clients)
    assert all(len(client.processes) > 1 for client in clients)
    assert server.metric("ts_sequences_moved_total", model_name=model) >= 16
    assert server.metric("ts_sequences_closed_total", model_name=model, reason="worker_lost") == 0
    assert server.metric("ts_open_sequences", model_name=model) == 16


VERSIONED = """
class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        state = context.state.get(index, {"count": 0, "versions": []})
        context.state[index] = {"count": state["count"] + 1, "versions": state["versions"]}
        return f"{state['count'] + 1} {self.version}:{','.join(state['versions'])}"
"""
MIGRATING = (
    VERSIONED
    + """
    def migrate(self, state, from_version):
        return {**state, "versions": [*state["versions"], from_version]}
"""
)


def versioned(folder: Path, name: str, handler: str) -> Path:
    made = model_folder(folder / name, "said", handler, CONFIG)
    (made / "MAR-INF").mkdir()
    model = {"modelName": "said", "modelVersion": name, "handler": "handler.py", "configFile": "model-config.yaml"}
    (made / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
    return made


def test_an_unregistered_version_hands_its_sequences_to_one_that_migrates_them(tmp_path: Path) -> None:
    with RunningServer({"said": versioned(tmp_path, "1", VERSIONED)}) as server:
        server.wait_ready()
        clients = [Client(server, "said", f"s{number}") for number in range(8)]
        assert all_step_on(clients)
        assert server.register(versioned(tmp_path, "2", MIGRATING), model_name="said").ok
        url = f"{server.management}/models/said"
        assert requests.put(f"{url}/2/set-default", timeout=DEADLINE).ok
        assert requests.delete(f"{url}/1", timeout=DEADLINE).ok
        assert all_step_on(clients)
        stop_all(clients)
        assert all(client.processes == {"1:", "2:1"} for client in clients)
        assert [each["modelVersion"] for each in server.describe("said", "/all")] == ["2"]
        assert server.metric("ts_sequences_migrated_total", model_name="said", model_version="2") == 8


def roll_out(server: RunningServer) -> requests.Response:
    return requests.put(f"{server.management}/models/said/2/rollout", timeout=DEADLINE)


@pytest.mark.parametrize("places", [1, 2])
def test_a_rollout_moves_sequences_to_the_new_version(tmp_path: Path, places: int) -> None:
    with RunningServer({"said": versioned(tmp_path, "1", VERSIONED)}) as server:
        server.wait_ready()
        assert server.scale("said", places).ok
        clients = [Client(server, "said", f"s{number}") for number in range(8)]
        assert all_step_on(clients)
        assert server.register(versioned(tmp_path, "2", MIGRATING), model_name="said", initial_workers=0).ok
        answer = roll_out(server)
        assert (answer.status_code, answer.json().get("state")) == (200, "done"), answer.text
        assert all_step_on(clients)
        stop_all(clients)
        assert all(client.processes == {"1:", "2:1"} for client in clients)
        running = {each["modelVersion"]: len(each["workers"]) for each in server.describe("said", "/all")}
        assert running == {"1": 0, "2": places}


def test_a_rollout_to_a_version_that_cannot_have_the_sequences_changes_nothing(tmp_path: Path) -> None:
    with RunningServer({"said": versioned(tmp_path, "1", VERSIONED)}) as server:
        server.wait_ready()
        clients = [Client(server, "said", f"s{number}") for number in range(4)]
        assert all_step_on(clients)
        assert server.register(versioned(tmp_path, "2", VERSIONED), model_name="said", initial_workers=0).ok
        answer = roll_out(server)
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "rollout_stopped")
        assert "does not migrate the sequences of version 1" in answer.json()["message"]
        assert all_step_on(clients)
        stop_all(clients)
        assert all(client.processes == {"1:"} for client in clients)
        running = {each["modelVersion"]: len(each["workers"]) for each in server.describe("said", "/all")}
        assert running == {"1": 1, "2": 0}
