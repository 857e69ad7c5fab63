"""What clients of durable sequences are told is true: frozen workers, lost stores, servers that stop, idle limits."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import requests
from tests.e2e.gate import Gate
from tests.e2e.running_server import RunningServer, eventually
from tests.e2e.sequence_store import SharedStore, shared_store


@pytest.fixture(params=["file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStore]:
    with shared_store(str(request.param), tmp_path) as shared:
        yield shared


def serve(model: Path, **properties: object) -> RunningServer:
    marks = model.parent
    environment = {"MARKS": str(marks), "GATE": str(marks / "gate")}
    return RunningServer({"tally": model}, properties=properties, environment=environment)


def step(
    server: RunningServer, sequence: str, text: str, request_id: str = "", *, start: bool = False, end: bool = False
) -> requests.Response:
    headers = {"ts_request_id": request_id} if request_id else {}
    headers |= {"ts_request_sequence_start": "true"} if start else {}
    headers |= {"ts_request_sequence_end": "true"} if end else {}
    return server.predict("tally", text, sequence=sequence, headers=headers)


def cause(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, answer.headers.get("ts-error-cause", "")


def no_worker_is_ready(server: RunningServer) -> bool:
    (described,) = server.describe("tally")
    return all(worker["status"] != "READY" for worker in described["workers"])


def test_words_about_workers_that_were_lost_around_a_commit_are_true(store: SharedStore) -> None:
    with serve(store.model()) as server:
        server.wait_ready()
        assert step(server, "a", "5").text == "5"
        assert step(server, "a", "freeze after 1").text == "6"
        assert step(server, "a", "1").text == "7"
        assert cause(step(server, "b", "freeze before 1", "1")) == (500, "response_timeout")
        assert step(server, "b", "1", "2").text == "1"
        assert step(server, "a", "kill after 1").text == "8"
        assert step(server, "c", "freeze after 2", "1", end=True).text == "2"
        assert step(server, "c", "3", "1b", start=True).text == "3"


def test_ids_may_be_used_again_in_the_next_incarnation(store: SharedStore) -> None:
    model = store.model()
    with serve(model) as first, serve(model) as second:
        first.wait_ready()
        second.wait_ready()
        for server, other in ((first, second), (second, first)):
            assert step(server, "cam", "5", "1", start=True).text == "5"
            assert step(server, "cam", "5", "1", start=True).text == "5"
            assert step(server, "cam", "2", "2", end=True).text == "7"
            assert step(other, "cam", "2", "2", end=True).text == "7"
            assert step(other, "cam", "100", "1", start=True).text == "100"
            assert step(other, "cam", "1", "2", end=True).text == "101"


def test_a_busy_sequence_does_not_expire_while_its_worker_is_replaced(store: SharedStore, tmp_path: Path) -> None:
    with serve(store.model(idle=1500)) as server, ThreadPoolExecutor(2) as clients:
        server.wait_ready()
        (tmp_path / "slow").touch()
        assert step(server, "a", "5").text == "5"
        dying = clients.submit(step, server, "a", "slow die 1")
        eventually((tmp_path / "a died").exists, "the step runs")
        queued = clients.submit(step, server, "a", "1")
        assert (dying.result().text, queued.result().text) == ("6", "7")
        closings = count(1)

        def expires() -> bool:
            number = next(closings)
            closed = "ts_sequences_closed_total"
            eventually(lambda: server.metric(closed, reason="idle") >= number, "the sequence is idle for too long")
            # To a server that stood still just now, the request may have come before that: the step then counts.
            return cause(step(server, "a", "1")) == (410, "sequence_expired")

        eventually(expires, "a step is refused because the sequence has expired")


def test_a_sequence_is_not_idle_while_the_server_that_has_it_is_frozen(store: SharedStore) -> None:
    model = store.model(idle=1000, lease=1)
    with serve(model) as first, serve(model) as second:
        first.wait_ready()
        second.wait_ready()
        assert step(first, "a", "5", "1").text == "5"
        frozen = [first.server, *first.workers()]
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(requests.ReadTimeout):
                headers = {"ts_request_id": "2"}
                first.predict("tally", "1", sequence="a", headers=headers, timeout=3)
            assert step(second, "a", "1", "2").text == "6"
        finally:
            for process in frozen:
                process.send_signal(signal.SIGCONT)
        assert step(second, "a", "1", "3").text == "7"


def test_what_waits_in_front_of_a_frozen_server_keeps_its_sequence_from_being_idle(store: SharedStore) -> None:
    with serve(store.model(idle=1000)) as server, ThreadPoolExecutor(1) as clients:
        server.wait_ready()
        assert step(server, "a", "5").text == "5"
        server.server.suspend()
        try:
            waiting = clients.submit(step, server, "a", "1")
            over = time.monotonic() + 1.5
            eventually(lambda: time.monotonic() > over, "the sequence would be idle for too long by now")
        finally:
            server.server.resume()
        assert waiting.result().text == "6"


def test_what_waits_for_a_worker_of_one_server_goes_on_although_another_has_let_its_sequence_expire(
    store: SharedStore, tmp_path: Path
) -> None:
    model = store.model(idle=1000)
    held = tmp_path / "held"
    with serve(model) as first, serve(model) as second, ThreadPoolExecutor(1) as clients:
        first.wait_ready()
        second.wait_ready()
        held.touch()
        try:
            second.workers()[0].kill()
            eventually(lambda: no_worker_is_ready(second), "the worker is gone")
            assert step(first, "a", "5", "1").text == "5"
            waiting = clients.submit(step, second, "a", "1", "2")
            eventually(lambda: first.metric("ts_sequences_closed_total", reason="idle"), "the sequence has expired")
        finally:
            held.unlink()
        assert waiting.result().text == "6"
        assert step(second, "a", "5", "1").text == "5"
        assert step(second, "a", "1", "3").text == "7"


def test_what_waits_in_front_of_a_frozen_server_goes_on_although_another_has_let_its_sequence_expire(
    store: SharedStore,
) -> None:
    model = store.model(idle=1000)
    with serve(model) as first, serve(model) as second, ThreadPoolExecutor(1) as clients:
        first.wait_ready()
        second.wait_ready()
        second.server.suspend()
        try:
            assert step(first, "a", "5").text == "5"
            waiting = clients.submit(step, second, "a", "1")
            eventually(lambda: first.metric("ts_sequences_closed_total", reason="idle"), "the sequence has expired")
        finally:
            second.server.resume()
        assert waiting.result().text == "6"
        eventually(lambda: second.metric("ts_sequences_closed_total", reason="idle"), "the sequence has expired")
        assert cause(step(first, "a", "1")) == (410, "sequence_expired")


def test_what_a_server_that_stops_cannot_tell_is_settled_by_the_same_request(
    store: SharedStore, tmp_path: Path
) -> None:
    model = store.model()
    gate = Gate(tmp_path)
    with ThreadPoolExecutor(1) as clients:
        with serve(model, drain_timeout=0) as server:
            server.wait_ready()
            assert step(server, "a", "5").text == "5"
            running = clients.submit(step, server, "a", "wait 1")
            gate.wait_until_reached()
            server.terminate()
            answer = running.result()
            assert cause(answer) == (503, "outcome_unknown")
            assert "Retry-After" not in answer.headers
        gate.open()
        with serve(model) as server:
            server.wait_ready()
            request_id = answer.headers["ts_request_id"]
            assert request_id == answer.headers["x-request-id"]
            assert step(server, "a", "wait 1", request_id).text == "6"
            assert step(server, "a", "wait 1", request_id).text == "6"
            assert step(server, "a", "1").text == "7"


def test_a_redis_that_takes_the_commit_and_falls_silent(tmp_path: Path) -> None:
    with (
        shared_store("redis", tmp_path) as store,
        serve(store.model(lease=2, response_timeout=60)) as server,
        ThreadPoolExecutor(1) as clients,
    ):
        assert store.redis is not None
        server.wait_ready()
        assert step(server, "a", "5", "1").text == "5"
        gate = Gate(tmp_path)
        running = clients.submit(step, server, "a", "wait 1", "2")
        gate.wait_until_reached()
        store.redis.send_signal(signal.SIGSTOP)
        try:
            gate.open()
            answer = running.result()
        finally:
            store.redis.send_signal(signal.SIGCONT)
        assert cause(answer) == (503, "outcome_unknown"), answer.text
        assert "Retry-After" not in answer.headers
        assert step(server, "a", "wait 1", "2").text == "6"
        assert step(server, "a", "1", "3").text == "7"
