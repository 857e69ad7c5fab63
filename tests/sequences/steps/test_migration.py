"""A version of a model continues the stored sequences of another one, whose states its handler migrates."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import answered, close, step
from tests.unit.ts.frontend_stub import Worker

from ts.jobs.errors import LoadError

#: The state is a number. A body: a number to be added, or "boom" (the step fails).
ONE = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = context.body(index).decode()
        context.state[index] = context.state.get(index, 0) + (1000 if word == "boom" else int(word))
        if word == "boom":
            raise ValueError(word)
        return f"1:{context.state[index]}"
"""
#: The state is a dict; the model's file may say what migrations do.
TWO = """
import time

migrated = []
behaves = "well"


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = context.body(index).decode()
        state = context.state.get(index, {"total": 0})
        state["total"] += 1000 if word == "boom" else int(word)
        context.state[index] = state
        if word == "boom":
            raise ValueError(word)
        return f"2:{state['total']}"

    def migrate(self, state, from_version):
        migrated.append((state, from_version))
        if behaves == "raises":
            raise ValueError("no")
        if behaves == "hangs":
            while True:
                time.sleep(0.001)
        return {"none": None, "unstorable": object()}.get(behaves, {"total": state})
"""

Version = Callable[..., Worker]


@pytest.fixture
def version(
    make_worker: Callable[..., Worker], cache_settings: CacheSettings, request: pytest.FixtureRequest
) -> Version:
    """Load a version of the test's model."""

    def make(version: str, source: str, **changes: Any) -> Worker:
        cache, name = cache_settings(**changes), request.node.name
        return make_worker(source, model_name=name, model_version=version, sequences=True, cache=cache)

    return make


def behave(worker: Worker, how: str) -> None:
    worker.module.behaves = how


FAILED = (500, "migration_failed")
MOVED = (409, "sequence_moved")


def test_a_sequence_continues_with_the_next_version_and_stays_there(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO)
    assert answered(one, step("1", "s", "5"), step("2", "t", "7")) == ["1:5", "1:7"]
    one.runtime.close()
    assert answered(two, step("3", "s", "1"), step("4", "t", "2")) == ["2:6", "2:9"]
    assert answered(two, step("5", "s", "1")) == ["2:7"]
    assert two.module.migrated == [(5, "1.0"), (7, "1.0")]
    two.runtime.close()
    again = version("2.0", TWO)
    assert answered(again, step("6", "s", "1")) == ["2:8"]
    assert again.module.migrated == []
    again.runtime.close()
    assert answered(version("1.0", ONE), step("7", "s", "1")) == [(410, "version_gone")]


def test_a_step_that_fails_migrates_nothing(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    one.runtime.close()
    assert answered(two, step("2", "s", "boom")) == [(503, "")]
    two.runtime.close()
    assert answered(version("1.0", ONE), step("3", "s", "1")) == ["1:6"]


def test_a_step_that_the_old_version_has_answered_gets_that_answer_from_the_new_one(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO)
    first, second = (step("a", "s", "5", number=1, token="t"), step("b", "s", "2", number=2, token="t"))
    assert answered(one, first) == ["1:5"]
    assert answered(one, second) == ["1:7"]
    one.runtime.close()
    assert answered(two, step("c", "s", "2", number=2, token="t")) == ["1:7"]
    assert answered(two, step("d", "s", "1", number=3, token="t")) == ["2:8"]
    assert answered(two, step("e", "s", "5", number=1, token="t")) == ["1:5"]
    two.runtime.close()
    behave(failing := version("3.0", TWO), "raises")
    assert answered(failing, step("f", "s", "1", number=3, token="t")) == ["2:8"]


@pytest.mark.parametrize("how", ["raises", "none", "unstorable", "hangs"])
def test_a_migration_that_fails_leaves_all_as_it_was(version: Version, how: str) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO, lease=0.4)
    assert answered(one, step("1", "s", "5"), step("2", "t", "7")) == ["1:5", "1:7"]
    one.runtime.close()
    behave(two, how)
    assert answered(two, step("3", "s", "1")) == [FAILED]
    behave(two, "well")
    assert answered(two, step("4", "t", "1")) == ["2:8"]
    again = version("1.0", ONE)
    assert answered(again, step("5", "s", "1")) == ["1:6"]
    again.runtime.close()
    assert answered(two, step("6", "s", "1")) == ["2:7"]


def test_one_that_hangs_fails_alone_and_several_do_not_add_up(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO.replace('== "hangs"', '== "hangs" and state < 5'), lease=0.4)
    names = "abcdef"
    assert answered(one, *(step(f"1{name}", name, str(number)) for number, name in enumerate(names, start=1)))
    one.runtime.close()
    behave(two, "hangs")
    began = time.monotonic()
    told = answered(two, *(step(f"2{name}", name, "1") for name in names))
    assert told == [FAILED] * 4 + ["2:6", "2:7"]
    assert time.monotonic() - began < 4 * 0.2


def test_a_start_marker_needs_no_migration(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    one.runtime.close()
    behave(two, "raises")
    assert answered(two, step("2", "s", "1", start=True)) == ["2:1"]
    assert answered(two, step("3", "s", "1")) == ["2:2"]


def test_a_sequence_without_a_state_moves_without_a_call(version: Version) -> None:
    stateless = ONE.replace("context.state[index] = ", "total = ").replace("{context.state[index]}", "{total}")
    one, two = version("1.0", stateless), version("2.0", TWO)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    one.runtime.close()
    assert answered(two, step("2", "s", "1")) == ["2:1"]
    assert two.module.migrated == []


def test_a_version_that_another_server_has_open_and_lets_go_of(version: Version) -> None:
    one, two = version("1.0", ONE, owner="elsewhere/1/1"), version("2.0", TWO)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    assert answered(two, step("2", "s", "1")) == [(409, "sequence_held")]
    close(one, s="suspended")
    one.runtime.update_store()
    assert answered(two, step("3", "s", "1")) == ["2:6"]
    assert answered(one, step("4", "s", "1")) in ([MOVED], [(409, "sequence_held")])


def test_of_two_that_migrate_at_once_only_one_has_the_sequence(version: Version) -> None:
    one = version("1.0", ONE)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    one.runtime.close()
    first, second = version("2.0", TWO), version("2.0", TWO, owner="elsewhere/1/1")
    assert answered(first, step("2", "s", "boom")) == [(503, "")]  # its lease is given back
    first.runtime.update_store()
    assert answered(second, step("3", "s", "1")) == ["2:6"]
    assert answered(first, step("4", "s", "1")) == [(409, "sequence_held")]


#: Both append what is new; the state of the second version is a list.
LOG_ONE = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        number = int(context.body(index))
        context.state[index] = context.state.get(index, 0) + number
        context.state.append(index, number)
        return f"1:{context.state[index]}"

    def rebuild(self, states, entries):
        return [(state or 0) + sum(numbers) for state, numbers in zip(states, entries)]
"""
LOG_TWO = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        number = int(context.body(index))
        context.state[index] = [*context.state.get(index, []), number]
        context.state.append(index, number)
        return f"2:{sum(context.state[index])}"

    def rebuild(self, states, entries):
        return [[*(state or []), *numbers] for state, numbers in zip(states, entries)]

    def migrate(self, state, from_version):
        return [state]
"""
WITH_ENTRIES = LOG_TWO.replace(
    """def migrate(self, state, from_version):
        return [state]""",
    """def migrate(self, state, from_version, entries):
        return [(state or 0) + sum(entries)]""",
)


@pytest.mark.parametrize("source", [LOG_TWO, WITH_ENTRIES])
@pytest.mark.parametrize("checkpoint_steps", [0, 2, 3])
def test_logs_move_whole_and_what_comes_after_is_a_log_again(
    version: Version, source: str, checkpoint_steps: int
) -> None:
    one = version("1.0", LOG_ONE, checkpoint_steps=checkpoint_steps)
    for number in range(1, 6):
        assert len(answered(one, step(str(number), "s", str(number)))) == 1
    one.runtime.close()
    two = version("2.0", source, checkpoint_steps=checkpoint_steps)
    assert answered(two, step("6", "s", "6")) == ["2:21"]
    assert answered(two, step("7", "s", "7")) == ["2:28"]
    two.runtime.close()
    assert answered(version("2.0", source), step("8", "s", "8")) == ["2:36"]


@pytest.mark.parametrize(("old", "new", "told"), [(LOG_ONE, TWO, FAILED), (ONE, LOG_TWO, "2:6")])
def test_between_states_and_logs(version: Version, old: str, new: str, told: Any) -> None:
    one, two = version("1.0", old), version("2.0", new)
    assert answered(one, step("1", "s", "5")) == ["1:5"]
    one.runtime.close()
    assert answered(two, step("2", "s", "1")) == [told]


RETURNS_NONE = [
    LOG_TWO.replace("return [state]", "return None"),
    LOG_TWO.replace("return [[*(state or []), *numbers] for", "return [None for"),
    WITH_ENTRIES.replace("return [(state or 0)", "[(state or 0)"),
]


@pytest.mark.parametrize(("source", "checkpoint_steps"), [*zip(RETURNS_NONE, (2, 0, 0), strict=True)])
def test_nothing_in_place_of_a_state_loses_no_step(version: Version, source: str, checkpoint_steps: int) -> None:
    one = version("1.0", LOG_ONE, checkpoint_steps=checkpoint_steps)
    for number in (1, 2, 3):
        assert len(answered(one, step(str(number), "s", str(number)))) == 1
    one.runtime.close()
    two = version("2.0", source, checkpoint_steps=checkpoint_steps)
    assert answered(two, step("4", "s", "4")) == [FAILED]
    two.runtime.close()
    assert answered(version("1.0", LOG_ONE), step("5", "s", "4")) == ["1:10"]


def test_a_state_that_left_the_memory_before_its_first_commit_is_migrated_once_more(version: Version) -> None:
    one = version("1.0", ONE)
    first = step("1", "s", "5", number=1, token="t")
    assert answered(one, first, step("2", "t", "7")) == ["1:5", "1:7"]
    one.runtime.close()
    two = version("2.0", TWO, capacity=1)
    assert answered(two, step("3", "s", "5", number=1, token="t")) == ["1:5"]  # it is in memory now, and not stored
    assert answered(two, step("4", "t", "1")) == ["2:8"]
    assert answered(two, step("5", "s", "1", number=2, token="t")) == ["2:6"]
    assert two.module.migrated == [(5, "1.0"), (7, "1.0"), (5, "1.0")]


SERVED = """
from ts import serve


@serve(store="file")
class Total:
    def predict(self, number: int, state: RESULT) -> str:
        STEP

    def migrate(self, state, from_version):
        return MIGRATED
"""


@pytest.mark.parametrize("migrated", ["{'total': state[0]}", "state"])
def test_the_state_of_a_served_class_is_of_the_type_that_it_says(version: Version, migrated: str) -> None:
    texts = {"RESULT": "list", "STEP": "state[:] = [sum(state) + number]; return str(state[0])", "MIGRATED": "state"}
    one, two = SERVED, SERVED
    for name, text in texts.items():
        one = one.replace(name, text)
    texts = {"RESULT": "dict", "STEP": "state['total'] = state.get('total', 0) + number; return str(state['total'])"}
    for name, text in {**texts, "MIGRATED": migrated}.items():
        two = two.replace(name, text)
    first = version("1.0", one)
    assert answered(first, step("1", "s", "5")) == ["5"]
    first.runtime.close()
    assert answered(version("2.0", two), step("2", "s", "1")) == [FAILED if migrated == "state" else "6"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (TWO.replace("def migrate(self, state, from_version)", "def migrate(self, state)"), r"migrate\(state\) cannot"),
        (TWO.replace("    def migrate", "    async def migrate"), "migrate is a coroutine"),
    ],
)
def test_a_migrate_that_cannot_be_called_is_told_when_the_model_loads(
    version: Version, source: str, problem: str
) -> None:
    with pytest.raises(LoadError, match=problem):
        version("2.0", source)


def test_the_model_declares_that_it_migrates(version: Version) -> None:
    one, two = version("1.0", ONE), version("2.0", TWO)
    declared = [each.runtime.declares["sequence_states"] for each in (one, two)]
    assert [each.get("migrates", False) for each in declared] == [False, True]
