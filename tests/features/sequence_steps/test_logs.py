"""`context.state.append`: a step stores what is new, and `rebuild` makes the state of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.features.sequence_steps.conftest import CacheSettings
from tests.features.sequence_steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

#: Adds up. A body: a number; "bad" (the row fails after it has appended), "look" (nothing is appended or set).
SUM = """
class Handler:
    def initialize(self, context):
        self.rebuilt = []

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = context.body(index).decode()
        if word == "look":
            return str(context.state.get(index, 0))
        number = int(word) if word.isdigit() else 1000
        context.state[index] = context.state.get(index, 0) + number
        context.state.append(index, number)
        if word == "bad":
            context.fail(index, word, 422)
        return str(context.state[index])

    def rebuild(self, states, entries):
        self.rebuilt.append((list(states), [list(each) for each in entries]))
        return [(state or 0) + sum(numbers) for state, numbers in zip(states, entries)]
"""


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker_of(make_worker: Callable[..., Worker], cache_settings: CacheSettings, tmp_path: Path) -> Make:
    def make(source: str, **changes: object) -> Worker:
        return make_worker(source, model_name=tmp_path.name, sequences=True, cache=cache_settings(**changes))

    return make


def test_steps_append_and_a_row_that_fails_appends_nothing(worker_of: Make) -> None:
    worker = worker_of(SUM)
    assert answered(worker, step("1", "s", "5"), step("2", "t", "7")) == ["5", "7"]
    assert answered(worker, step("3", "s", "bad"), step("4", "t", "1")) == [(422, ""), "8"]
    assert answered(worker, step("5", "s", "3"), step("6", "t", "look")) == ["8", "8"]


def test_a_handler_without_rebuild_cannot_append(worker_of: Make) -> None:
    worker = worker_of(SUM.replace("def rebuild", "def another_name"))
    assert answered(worker, step("1", "s", "5")) == [(503, "")]
