"""`context.state` and the helpers beside it, in memory and with each kind of store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

from ts.sequence.sequence_cache import LARGEST_COPY

#: Adds up in a list that is changed in place. A body: a number, "bad" (this row fails after it has changed its state),
#: "replace" (as "bad", with a new state), "boom" (the handler fails after it has changed all states), "forget".
TOTAL = """
class Handler:
    def initialize(self, context):
        self.starts = []

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        self.starts.append(context.is_start(index))
        word = context.body(index).decode()
        if word == "forget":
            del context.state[index]
            return "forgotten"
        state = context.state.setdefault(index, {"numbers": []})
        state["numbers"].append(int(word) if word.isdigit() else 1000)
        if word == "boom":
            raise ValueError(word)
        if word == "replace":
            context.state[index] = {"numbers": [5000]}
        if word in ("bad", "replace"):
            context.fail(index, f"{word!r} is not a number", 422)
            return "never sent"
        if context.is_end(index) or word == "0":
            context.end_sequence(index)
        return str(sum(context.state[index]["numbers"]))
"""
REFUSED = (422, "")


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker_of(make_worker: Callable[..., Worker], cache_settings: CacheSettings, kind: str, tmp_path: Path) -> Make:
    def make(source: str, *, sequences: bool = True, **changes: Any) -> Worker:
        cache = cache_settings(**changes)
        return make_worker(source, model_name=tmp_path.name, sequences=sequences, cache=cache)

    return make


def test_each_row_has_the_state_of_its_sequence(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "7")) == ["5", "7"]
    assert answered(worker, step("j3", "t", "1"), step("j4", "s", "1")) == ["8", "6"]
    assert worker.service.context.sequence_cache.keys() == ["s", "t"]


def test_a_state_can_be_forgotten(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "5")) == ["5"]
    assert answered(worker, step("j2", "s", "forget")) == ["forgotten"]
    assert answered(worker, step("j3", "s", "1")) == ["1"]


@pytest.mark.parametrize("word", ["bad", "replace"])
def test_a_row_that_fails_changes_nothing_and_costs_no_other_row(worker_of: Make, word: str) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "5")) == ["5", "5"]
    assert answered(worker, step("j3", "s", word), step("j4", "t", "1"), step("j5", "u", word)) == [
        REFUSED,
        "6",
        REFUSED,
    ]
    assert answered(worker, step("j6", "s", "1"), step("j7", "t", "1"), step("j8", "u", "1")) == ["6", "7", "1"]


def test_the_text_of_a_rows_error_is_the_handlers(worker_of: Make) -> None:
    (result,) = worker_of(TOTAL).infer(step("j1", "s", "bad"))
    assert (result[2], result[6]) == (422, "'bad' is not a number")


def test_a_batch_that_fails_changes_no_state(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "5")) == ["5", "5"]
    assert answered(worker, step("j3", "s", "1"), step("j4", "t", "boom")) == [(503, "")] * 2
    assert answered(worker, step("j5", "s", "1"), step("j6", "t", "1")) == ["6", "6"]


def test_a_first_step_that_fails_leaves_no_sequence(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "bad")) == [REFUSED]
    assert answered(worker, step("j2", "s", "5")) == ["5"]
    assert worker.service.entry_point.__self__.starts == [True, True]  # type: ignore[attr-defined]


def test_a_failed_step_may_be_sent_again(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    assert answered(worker, step("j1", "s", "5", number=1, token="a")) == ["5"]
    assert answered(worker, step("j2", "s", "bad", number=2, token="a")) == [REFUSED]
    assert answered(worker, step("j3", "s", "6", number=2, token="a")) == ["11"]


def test_the_first_step_is_told_apart(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    for number, start in enumerate([False, False, True, False]):
        answered(worker, step(f"j{number}", "s", "5", start=start))
    assert worker.service.entry_point.__self__.starts == [True, False, True, False]  # type: ignore[attr-defined]


def test_a_handler_or_a_client_ends_the_sequence(worker_of: Make) -> None:
    worker = worker_of(TOTAL)
    for number, last in enumerate([step("j1", "s", "0"), step("j2", "s", "5", end=True)]):
        (result,) = worker.infer(last)
        assert result.news.ended == ["s"], number


FAULTY = """
def handle(data, context):
    if data is None:  # the call that initializes
        return None
    word = data[0]["body"].decode()
    try:
        return [str(eval(word, {"context": context}))]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
"""


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("context.state[0]", "the sequence of row 0, 's', has no state yet"),
        ("context.state[1]", "the batch has no row 1; it has 1"),
        ("context.state.get(-1)", "None"),
        ("context.fail(0, 'well', 200)", "the status of an error is 400 to 599, not 200"),
        ("0 in context.state, len(context.state), list(context.state)", "(False, 0, [])"),
    ],
)
def test_a_mistake_of_the_handler_is_told(worker_of: Make, expression: str, told: str) -> None:
    (said,) = answered(worker_of(FAULTY), step("j1", "s", expression))
    assert told in said


def test_a_model_without_sequences_has_no_states(worker_of: Make) -> None:
    worker = worker_of(FAULTY, sequences=False)
    (said,) = answered(worker, step("j1", "s", "context.state[0]"))
    assert "row 0 belongs to no sequence" in said
    assert "sequenceBatching: true" in said


LARGE = f"""
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        state = context.state.setdefault(0, [bytes({LARGEST_COPY})])
        state.append(context.body(0))
        if context.body(0) == b"bad":
            context.fail(0, "bad")
        return [str(len(state))]
"""


def test_a_large_state_that_a_failed_step_may_have_changed_is_not_used_again(worker_of: Make, kind: str) -> None:
    worker = worker_of(LARGE)
    assert answered(worker, step("j1", "s", "a")) == ["2"]
    assert answered(worker, step("j3", "s", "bad")) == [(400, "")]
    lost = (410, "sequence_lost")
    assert answered(worker, step("j4", "s", "a")) == [lost if kind == "memory" else "3"]
    assert answered(worker, step("j5", "s", "a", start=True)) == ["2"]


@pytest.mark.parametrize("kind", ["file", "redis"])
def test_a_store_without_a_state_is_told(worker_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of("def handle(data, context): return data and ['ok'] * len(data)")
    for number in range(20):
        answered(worker, step(f"j{number}", "s", "5"))
    (told,) = [each.getMessage() for each in caplog.records if "context.state" in each.getMessage()]
    assert told.startswith("handler.cache.store is set, but in 10 steps the handler has kept nothing")
