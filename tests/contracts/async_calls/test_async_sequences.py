"""Asynchronous handlers with sequences: turns within one, calls of several at once, cancellations, and a store."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.async_calls.conftest import Start
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import step
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, OK, Peer

#: Adds up. A body: a number; or a number and a word on which the call waits, once it has added, until that is released
#: ("release WORD", without a sequence); "fail" and "panic" raise once they have added 1000.
HANDLER = """
    import asyncio

    class Handler:
        async def initialize(self, context):
            self.events = {}

        def event(self, name):
            return self.events.setdefault(name, asyncio.Event())

        async def handle(self, data, context):
            first, _, word = context.body(0).decode().partition(" ")
            if first == "release":
                self.event(word).set()
                return ["released"]
            state = context.state.setdefault(0, {"total": 0})
            state["total"] += int(first) if first.isdigit() else 1000
            if first == "fail":
                raise ValueError(first)
            if first == "panic":
                raise BaseException(first)
            if word:
                await self.event(word).wait()
            if first == "0":
                context.end_sequence(0)
            return [str(state["total"])]
"""


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def load(start: Start, cache_settings: CacheSettings, tmp_path: Path) -> Start:
    """Start a worker with sequences, whose leases outlast the test."""

    def load_with(**changes: Any) -> tuple[subprocess.Popen[str], Peer, Any]:
        cache = cache_settings(lease=600.0, **changes)
        return start(HANDLER, model_name=tmp_path.name, sequences=True, cache=cache)

    return load_with


@pytest.fixture
def jobs(load: Start) -> Peer:
    """The connection to such a worker."""
    return load()[1]


def told(jobs: Peer, *job_ids: str) -> list[Any]:
    """What these jobs are told, in the order of the ids: the body, or the status of an error."""
    answers: dict[str, Any] = {}
    while len(answers) < len(job_ids):
        kind, rows, *_ = jobs.receive()
        assert kind == "results"
        for job_id, more, status, _, _, body, error, _ in rows:
            assert job_id in job_ids
            assert job_id not in answers
            assert not more
            answers[job_id] = body.decode() if error is None else status
    return [answers[each] for each in job_ids]


def send(jobs: Peer, *rows: Any) -> None:
    jobs.send("infer", list(rows))


def release(jobs: Peer, word: str) -> Any:
    return step(f"release {word}", "", f"release {word}")


def test_steps_of_one_sequence_take_turns_and_those_of_others_do_not_wait(jobs: Peer) -> None:
    send(jobs, step("a1", "a", "5 x"), step("a2", "a", "1"), step("b1", "b", "7"))
    assert told(jobs, "b1") == ["7"]
    send(jobs, step("b2", "b", "1"), release(jobs, "x"))
    assert told(jobs, "b2", "release x", "a1", "a2") == ["8", "released", "5", "6"]


def test_a_cancelled_step_does_not_count_and_the_next_has_the_state_before(jobs: Peer) -> None:
    send(jobs, step("a1", "a", "5"))
    assert told(jobs, "a1") == ["5"]
    send(jobs, step("a2", "a", "100 x"), step("b1", "b", "1"))
    assert told(jobs, "b1") == ["1"]
    jobs.send_together(["cancel", ["a2"]], ["infer", [step("a3", "a", "1")]])
    assert told(jobs, "a2", "a3") == [499, "6"]


def test_a_step_that_is_cancelled_before_its_turn_leaves_the_turn_to_others(jobs: Peer) -> None:
    send(jobs, step("a1", "a", "5 x"), step("a2", "a", "100"), step("a3", "a", "1"))
    jobs.send("cancel", ["a2"])
    assert told(jobs, "a2") == [499]
    send(jobs, release(jobs, "x"))
    assert told(jobs, "release x", "a1", "a3") == ["released", "5", "6"]


@pytest.mark.parametrize("body", ["fail", "panic"])
def test_a_step_that_fails_does_not_count(jobs: Peer, body: str) -> None:
    send(jobs, step("a1", "a", "5"))
    assert told(jobs, "a1") == ["5"]
    send(jobs, step("a2", "a", body), step("a3", "a", "1"))
    assert told(jobs, "a2", "a3") == [503, "6"]


def test_a_step_that_comes_twice_counts_once(jobs: Peer) -> None:
    send(jobs, step("a1", "a", "5", number=1, token="t"), step("again", "a", "5", number=1, token="t"))
    assert told(jobs, "a1", "again") == ["5", "5"]
    send(jobs, step("a2", "a", "1", number=2, token="t"))
    assert told(jobs, "a2") == ["6"]


def test_a_sequence_that_has_ended_begins_anew(jobs: Peer) -> None:
    for job_id, body, total in (("a1", "5", "5"), ("a2", "0", "5"), ("a3", "1", "1")):
        send(jobs, step(job_id, "a", body, end=body == "0"))
        assert told(jobs, job_id) == [total]
        if body == "0":
            jobs.send("end_sequence", [["a", "ended", 0.0]])


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_another_worker_goes_on_where_one_has_stopped(load: Start, kind: str) -> None:
    process, jobs, loaded = load()
    assert loaded["declares"]["sequence_states"] == {"store": kind, "stepsWrite": "state"}
    send(jobs, step("a1", "a", "5"))
    assert told(jobs, "a1") == ["5"]
    jobs.send("stop")
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    _, jobs, _ = load()
    send(jobs, step("a2", "a", "1"))
    assert told(jobs, "a2") == ["6"]


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_a_sequence_that_the_server_has_let_go_is_soon_free(load: Start) -> None:
    _, jobs, _ = load()
    _, other, _ = load(owner="another server")
    rows = [step(f"{name}1", name, "5") for name in "abc"]
    send(jobs, *rows)
    assert told(jobs, "a1", "b1", "c1") == ["5"] * 3
    for name in "abc":
        jobs.send("end_sequence", [[name, "moved", 0.0]])
    for name in "abc":
        attempt, answer = 0, [409]
        while answer == [409]:
            attempt += 1
            send(other, step(f"{name} {attempt}", name, "1"))
            answer = told(other, f"{name} {attempt}")
        assert answer == ["6"]


def test_a_worker_without_sequences_is_as_before(start: Start) -> None:
    _, jobs, loaded = start(HANDLER.replace('context.state.setdefault(0, {"total": 0})', '{"total": 0}'))
    assert loaded == OK
    send(jobs, step("a1", "a", "5"))
    assert told(jobs, "a1") == ["5"]
