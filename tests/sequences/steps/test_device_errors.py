"""Errors of a device that surface while a state is read from or written to a store are not those of the state."""

import os
from collections.abc import Iterator

import pytest
from tests.sequences.steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

from ts.jobs import device_loss

LOST = "CUDA error: device-side assert triggered"
MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."

#: A handler whose states are on a stand-in of a GPU: copies from and to it raise what a test says in ``errors``. The
#: cache has room for one state, so that the other one is read when it is needed.
TOTALS = """
    from types import SimpleNamespace

    from ts.sequence import SequenceCache

    errors = {}
    calls = []

    def copied(direction, value):
        if direction in errors:
            raise RuntimeError(errors[direction])
        return value

    def to_host(state):
        return copied("to host", state.total)

    def to_device(total):
        return SimpleNamespace(total=copied("to device", total))

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context, encoders={SimpleNamespace: (to_host, to_device)})
            self.cache.set_size(1)

        def handle(self, data, context):
            calls.append(len(data))
            return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

        def step(self, sequence_id, body):
            state = self.cache.setdefault(sequence_id, SimpleNamespace(total=0))
            state.total += int(body)
            return state.total
"""


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(device_loss.loss, "reason", "")


def another_process(durable_worker: Make) -> Worker:
    device_loss.loss.reason = ""
    return durable_worker(TOTALS)


@pytest.fixture
def worker(durable_worker: Make) -> Iterator[Worker]:
    """A worker that has the state of "in memory", and that of "stored" only in the store; both totals are 5."""
    worker = durable_worker(TOTALS)
    assert answered(worker, step("j1", "stored", "5", start=True)) == ["5"]
    assert answered(worker, step("j2", "in memory", "5", start=True)) == ["5"]
    yield worker
    worker.module.errors.clear()


@pytest.mark.parametrize(("direction", "sequence"), [("to host", "in memory"), ("to device", "stored")])
def test_memory_that_ran_out_costs_neither_the_state_nor_the_worker(
    worker: Worker, direction: str, sequence: str
) -> None:
    worker.module.errors[direction] = MEMORY
    assert answered(worker, step("j3", sequence, "1", request_id="r")) == [(507, "handler_error")]
    assert answered(worker, step("j4", sequence, "1", request_id="r")) == [(507, "handler_error")]
    worker.module.errors.clear()
    assert answered(worker, step("j5", sequence, "1", request_id="r")) == ["6"]


@pytest.mark.parametrize(("direction", "sequence"), [("to host", "in memory"), ("to device", "stored")])
def test_a_lost_device_ends_the_worker_but_not_the_sequence(
    worker: Worker, durable_worker: Make, direction: str, sequence: str
) -> None:
    worker.module.errors[direction] = LOST
    row = step("j3", sequence, "1", request_id="r")
    with pytest.raises(Ended):
        worker.infer(row)
    said = worker.peer.arrived()
    assert [message[0] for message in said] == ["leaving", "results"]
    ((_, _, status, _, _, _, text, (cause, *_)),) = said[1][1]
    assert (status, cause) == (500, "handler_error")
    assert LOST in text
    assert "The worker is replaced." in text
    assert answered(another_process(durable_worker), step("j4", sequence, "1", request_id="r")) == ["6"]


def test_the_other_rows_of_the_batch_are_answered_first(worker: Worker, durable_worker: Make) -> None:
    worker.module.errors["to device"] = LOST
    with pytest.raises(Ended):
        worker.infer(step("j3", "stored", "1"), step("j4", "in memory", "1"))
    assert [(row[0], row[2]) for row in worker.peer.result_rows()] == [("j3", 500), ("j4", 200)]
    fresh = another_process(durable_worker)
    assert answered(fresh, step("j5", "stored", "1"), step("j6", "in memory", "1")) == ["6", "7"]
