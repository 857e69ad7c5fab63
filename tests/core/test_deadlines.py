"""Requests with deadlines, and sessions with a period, at a real server whose steps take a known time."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from tests.e2e.running_server import RunningServer, model_folder
from websockets.sync.client import ClientConnection, connect

#: Takes as many milliseconds as the body says, and answers with the number of steps of the sequence so far.
STEPS = """
import time

counts = {}


def handle(data, context):
    if data is None:
        return None
    answers = []
    for index, row in enumerate(data):
        time.sleep(float(row["body"]) / 1e3)
        sequence_id = context.get_sequence_id(index)
        counts[sequence_id] = counts.get(sequence_id, 0) + 1
        answers.append(str(counts[sequence_id]))
    return answers
"""
STATEFUL = "sequenceBatching: true\nmaxNumSequence: 50\nmaxSequenceJobQueueSize: 8\nsequenceMaxIdleMSec: 60000\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    names = ("late", "dropped", "sessions", "live")
    models = {name: model_folder(folder, name, STEPS, STATEFUL) for name in names}
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def step(server: RunningServer, model: str, sequence: str, milliseconds: int, **headers: object) -> requests.Response:
    sent = {"ts_request_sequence_id": sequence, "Content-Type": "text/plain"}
    sent |= {f"ts_request_{name}": str(value) for name, value in headers.items()}
    return requests.post(f"{server.inference}/predictions/{model}", data=str(milliseconds), headers=sent, timeout=60)


def test_a_late_answer_names_its_delay(server: RunningServer) -> None:
    late = step(server, "late", "a", 100, deadline_ms=40)
    in_time = step(server, "late", "a", 1, deadline_ms=30_000)
    assert (late.status_code, in_time.status_code) == (200, 200)
    assert float(late.headers["ts-deadline-missed-ms"]) > 50
    assert "ts-deadline-missed-ms" not in in_time.headers
    metrics = requests.get(f"{server.metrics}/metrics", timeout=10).text
    assert re.search(r'ts_deadline_misses_total{model_name="late",[^}]*reason="late"[^}]*} 1', metrics)
    assert re.search(r'ts_deadline_slack_seconds_count{model_name="late",[^}]*} 1', metrics)


def test_the_console_counts_deadlines(server: RunningServer) -> None:
    def shown(model: str) -> Any:
        path = f"{server.management}/console/api/models/{model}/1.0"
        with requests.get(path, stream=True, timeout=60) as events:
            return next(json.loads(line[6:])["deadlines"] for line in events.iter_lines() if line.startswith(b"data: "))

    assert shown("live") is None, "there are none"
    before = shown("late") or {"in_time": 0, "late": 0}
    step(server, "late", "counted", 60, deadline_ms=10)
    step(server, "late", "counted", 1, deadline_ms=30_000)
    now = shown("late")
    assert (now["in_time"], now["late"], now["dropped"]) == (before["in_time"] + 1, before["late"] + 1, 0)
    assert now["late_seconds"] > 0.04
    assert now["slack_seconds"] > 29


def test_a_step_that_cannot_be_in_time_is_dropped_and_its_sequence_continues(server: RunningServer) -> None:
    assert step(server, "dropped", "a", 1).text == "1"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(step, server, "dropped", "other", 600)
        time.sleep(0.2)
        began = time.monotonic()
        dropped = step(server, "dropped", "a", 1, deadline_ms=100, late="drop")
        took = time.monotonic() - began
        assert (dropped.status_code, dropped.headers["ts-error-cause"]) == (504, "deadline_missed")
        assert took < 0.35, "the answer waited for the worker"
        assert running.result().status_code == 200
    assert step(server, "dropped", "a", 1, deadline_ms=30_000, late="drop").text == "2"


def test_a_session_is_accepted_only_if_all_are_in_time(server: RunningServer) -> None:
    for _ in range(20):
        step(server, "sessions", "measured", 20)
    accepted = step(server, "sessions", "a", 20, period_ms=500)
    refused = step(server, "sessions", "b", 20, period_ms=25)
    degraded = step(server, "sessions", "c", 20, period_ms=25, degrade="true")
    assert accepted.status_code == 200
    assert "ts-deadline-degraded" not in accepted.headers
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "deadline_capacity")
    assert refused.headers["Retry-After"] == "1"
    assert degraded.headers["ts-deadline-degraded"] == "true"
    metrics = requests.get(f"{server.metrics}/metrics", timeout=10).text
    assert re.search(r'ts_guaranteed_sessions{model_name="sessions",[^}]*} 1', metrics)
    (share,) = re.findall(r'ts_guaranteed_share{model_name="sessions",[^}]*} (\S+)', metrics)
    assert 0 < float(share) < 1


@pytest.mark.parametrize("headers", [{"deadline_ms": "0"}, {"deadline_ms": "soon"}, {"deadline_ms": 5, "late": "no"}])
def test_a_header_that_is_no_deadline_is_refused(server: RunningServer, headers: dict[str, object]) -> None:
    refused = step(server, "late", "b", 1, **headers)
    assert refused.status_code == 400
    name, value = list(headers.items())[-1]
    assert f"ts_request_{name}: {str(value)!r}" in refused.json()["message"]


def open_session(server: RunningServer, query: str) -> ClientConnection:
    address = server.inference.replace("http", "ws", 1)
    return connect(f"{address}/sequences/live?content_type=text/plain&{query}")


def test_a_live_session_drops_late_frames_and_goes_on(server: RunningServer) -> None:
    with open_session(server, "deadline_ms=150&late=drop") as socket:
        assert json.loads(socket.recv())["resume"] is None
        for milliseconds in (1, 400, 1, 1):
            socket.send(json.dumps({"body": str(milliseconds)}))
        answers = [json.loads(socket.recv()) for _ in range(4)]
        socket.send(json.dumps({"body": "1"}))
        answers.append(json.loads(socket.recv()))
    assert [each["step"] for each in answers] == [1, 2, 3, 4, 5]
    assert [each.get("body") for each in answers] == ["1", "2", None, None, "3"]
    assert [each["error"]["cause"] for each in answers[2:4]] == ["deadline_missed"] * 2
    assert "ts-deadline-missed-ms" in answers[1]["headers"]


def test_a_live_session_without_room_fails_with_its_first_step(server: RunningServer) -> None:
    with open_session(server, "") as socket:
        socket.recv()
        for _ in range(8):
            socket.send(json.dumps({"body": "20", "deadline_ms": 10_000}))
            assert json.loads(socket.recv())["status"] == 200
    with open_session(server, "period_ms=2") as socket:
        socket.recv()
        socket.send(json.dumps({"body": "20"}))
        assert json.loads(socket.recv())["error"]["cause"] == "deadline_capacity"
    with open_session(server, "period_ms=2&degrade=true") as socket:
        socket.recv()
        socket.send(json.dumps({"body": "20"}))
        assert json.loads(socket.recv())["headers"]["ts-deadline-degraded"] == "true"
