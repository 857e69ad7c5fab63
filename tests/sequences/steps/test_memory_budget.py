"""`maxMemorySize`: the states in the memory of a worker have a budget in bytes, whatever they are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

#: Adds as many bytes to a sequence as the body says, and answers with how many there are.
BYTES = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        for index in range(len(data)):
            context.state[index] = context.state.get(index, b"") + bytes(int(context.body(index)))
        return [str(len(context.state[index])) for index in range(len(data))]
"""
#: The mean of what came, in an arena on whose device three states have room.
MEANS = """
import torch
from ts.sequence.arena import Arena, Field

class Handler:
    def initialize(self, context):
        self.arena = Arena(context, {"sum": Field((64,)), "count": Field((), torch.int64)}, most_bytes=4 * 264)

    def handle(self, data, context):
        rows = range(len(data))
        values = torch.tensor([float(context.body(row)) for row in rows])[:, None]
        before = self.arena.gather([context.state.get(row) for row in rows])
        after = {"sum": before["sum"] + values, "count": before["count"] + 1}
        for row, state in zip(rows, self.arena.scatter(after)):
            context.state[row] = state
        return [f"{mean:g}" for mean in (after["sum"][:, 0] / after["count"]).tolist()]
"""
BUDGET = 10_000


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker_of(make_worker: Callable[..., Worker], cache_settings: CacheSettings, tmp_path: Path) -> Make:
    def make(source: str, **changes: Any) -> Worker:
        return make_worker(source, model_name=tmp_path.name, sequences=True, cache=cache_settings(**changes))

    return make


def step_of(name: str, number: int, body: str) -> list[Any]:
    return step(f"{name}{number}", name, body, number=number, token=f"token of {name}")


def rest(worker: Worker) -> None:
    """The answers have left."""
    assert worker.service.steps is not None
    worker.service.steps.rest()


STORED = pytest.mark.parametrize("kind", ["file", "redis"], indirect=True)
IN_MEMORY = pytest.mark.parametrize("kind", ["memory"], indirect=True)


@STORED
def test_more_states_than_the_budget_holds_are_served_as_if_all_fitted(worker_of: Make) -> None:
    worker = worker_of(BYTES, most_memory=BUDGET, capacity=1000)
    cache = worker.service.context.sequence_cache
    for number in range(1, 4):
        for name in map(str, range(30)):
            assert answered(worker, step_of(name, number, "1000")) == [str(1000 * number)]
            rest(worker)
            assert cache.used_bytes <= BUDGET


@IN_MEMORY
def test_without_a_store_states_are_lost_only_beyond_the_budget(worker_of: Make) -> None:
    worker = worker_of(BYTES, most_memory=BUDGET, capacity=1000)
    for name in "abcde":
        assert answered(worker, step_of(name, 1, "3000")) == ["3000"]
    told = [answered(worker, step_of(name, 2, "1")) for name in "edcba"]
    assert told == [["3001"]] * 3 + [[(410, "sequence_lost")]] * 2


@IN_MEMORY
def test_a_state_that_is_larger_than_the_budget_is_refused_and_the_old_one_stays(worker_of: Make) -> None:
    worker = worker_of(BYTES, most_memory=BUDGET, capacity=1000)
    assert answered(worker, step_of("a", 1, "10")) == ["10"]
    assert answered(worker, step_of("a", 2, "20000")) == [(507, "handler_error")]
    assert answered(worker, step_of("a", 2, "5")) == ["15"]


@STORED
def test_states_of_an_arena_go_down_to_the_store_and_come_back(worker_of: Make) -> None:
    pytest.importorskip("torch")
    worker = worker_of(MEANS, most_memory=1000, capacity=1000)
    context = worker.service.context
    for number, value in enumerate((10, 20, 30), 1):
        for name in map(str, range(12)):
            assert answered(worker, step_of(name, number, f"{value}")) == [f"{5 + 5 * number}"]
            rest(worker)
            assert context.sequence_cache.used_bytes <= 1000
    assert context.arena.used_bytes <= 3 * context.arena.unit_bytes


@STORED
def test_metrics_say_what_each_tier_holds_and_what_moves(worker_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("ts.sequence.state_tiers._INTERVAL", 0.0)
    worker = worker_of(MEANS, most_memory=1000, capacity=1000)
    metrics, told = worker.service.context.metrics, set()
    for name in [*map(str, range(12)), "0"]:
        for number in (3, 4) if told and name == "0" else (1, 2):  # each second one finds the state
            answered(worker, step_of(name, number, "1"))
            rest(worker)
            told |= {(record[0], *(value for _, value in record[4][:-2])) for record in metrics.take_records()}
    assert told >= {("StateBytes", "device"), ("StateBytes", "host"), ("StateSequences", "device")}
    assert told >= {("StateHits", "host"), ("StateMisses", "host"), ("StateHits", "device"), ("StateMisses", "device")}
    assert told >= {("StateMoves", "device", "host"), ("StateMoves", "host", "store"), ("StateMoves", "store", "host")}
