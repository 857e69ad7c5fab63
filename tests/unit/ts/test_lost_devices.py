"""A worker whose device is lost answers the jobs that it has, and leaves, wherever the error surfaces."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, FrontendStub, Peer, Worker, load_message, row

from ts.jobs import device_loss
from ts.jobs.errors import device_failure
from ts.protocol.messages import ResultRow
from ts.runtime.result_bodies import error_row

ASSERT = "CUDA error: device-side assert triggered"
TOLD = f"The device failed while this request ran ({ASSERT}). The worker is replaced."
ECHO = "def handle(data, context):\n        return data and [row['body'] for row in data]"


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(device_loss.loss, "reason", "")


class LosingSteps:
    """Sequences whose states lose the device while they are read, for rows "lost", or written, for answers "lost"."""

    store_update_due = False
    undoes = True

    def __init__(self) -> None:
        self.unsent: Callable[[], None] | None = None

    def begin(self, rows: list[Any], wire_rows: Any, histories: Any) -> tuple[list[Any], list[ResultRow]]:
        lost = [each for each in rows if each.data["body"] == "lost"]
        return [each for each in rows if each not in lost], [_refused(each.job_id) for each in lost]

    def tell(self, row: Any, headers: Any) -> tuple[Any, None]:
        return headers, None

    def complete_and_send(self, answers: list[ResultRow], send: Any, seconds: float, *, meanwhile: bool) -> None:
        told = [_refused(answer[0]) if bytes(answer[5]) == b"unstored" else answer for answer in answers]
        self.unsent = lambda: send(told)  # as a thread does, later

    def wait_for_commit(self) -> None:
        if self.unsent is not None:
            self.unsent()
            self.unsent = None

    def rest(self) -> None:
        self.wait_for_commit()


def _refused(job_id: str) -> ResultRow:
    failure = device_failure(RuntimeError(ASSERT))
    assert failure is not None
    return error_row(job_id, failure.status, failure.message)


def told(messages: list[list[Any]]) -> list[Any]:
    """What the frontend was sent: kinds of messages, and of results what each row was told."""
    return [
        [(each[0], bytes(each[5]) if each[6] is None else each[6]) for each in message[1]]
        if message[0] == "results"
        else message[0]
        for message in messages
    ]


@pytest.fixture
def worker(make_worker: Callable[..., Worker]) -> Worker:
    worker = make_worker(ECHO)
    worker.service.steps = LosingSteps()  # type: ignore[assignment]
    return worker


def test_a_state_that_cannot_be_restored(worker: Worker) -> None:
    with pytest.raises(Ended):
        worker.infer(row("a", b"lost", "text/plain"))
    assert told(worker.peer.arrived()) == ["leaving", [("a", TOLD)]]


def test_a_state_that_cannot_be_restored_among_others(worker: Worker) -> None:
    with pytest.raises(Ended):
        worker.infer(row("a", b"lost", "text/plain"), row("b", b"1", "text/plain"))
    assert told(worker.peer.arrived()) == ["leaving", [("a", TOLD)], "leaving", [("b", b"1")]]


def test_a_state_that_cannot_be_stored(worker: Worker) -> None:
    with pytest.raises(Ended):
        worker.infer(row("a", b"1", "text/plain"), row("b", b"unstored", "text/plain"))
    assert told(worker.peer.arrived()) == ["leaving", [("a", b"1"), ("b", TOLD)]]


@pytest.mark.parametrize("continuous", [False, True])
def test_a_worker_that_has_nothing_to_do_ends_too(
    frontend: FrontendStub, tmp_path: Any, model: Callable[..., str], continuous: bool
) -> None:
    model(
        f"""
        class Handler:
            def initialize(self, context):
                pass

            def handle(self, data, context):
                return ["ok"] * len(data)

            def on_sequence_end(self, sequence_id, reason):
                raise RuntimeError({ASSERT!r})
        """,
        "handler.py",
    )
    process = frontend.start_worker(tmp_path)
    peers: dict[str, Peer] = {}
    for _ in range(2):
        peer, hello = frontend.accept()
        peers[hello["channel"]] = peer
    jobs = peers["jobs"]
    jobs.send("load", load_message(tmp_path, continuous=continuous))
    assert jobs.receive()[0] == "loaded"
    jobs.send_together(["end_sequence", [("s-1", "idle", 0.0)]], ["infer", [row("a")]])
    assert told([jobs.receive(), jobs.receive()]) == ["leaving", [("a", b"ok")]]
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode != 0
    assert "This worker ends, and a fresh one takes its place" in output


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(ASSERT), 500),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."), 507),
        (MemoryError(), 507),
        (ValueError("a class without a decoder"), None),
    ],
)
def test_whose_error_it_is(error: Exception, status: int | None) -> None:
    failure = device_failure(error)
    assert (failure and failure.status) == status
    assert bool(device_loss.loss.reason) is (status == 500)
