"""`context.state.append`: a step stores what is new, and `rebuild` makes the state of it."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.stepping import SUM, Make, answered, step
from tests.unit.ts.frontend_stub import Worker

from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.maintenance import Examined, Maintenance
from ts.sequences.steps.stores.portable import read_sequences, write_sequences


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_steps_append_and_a_row_that_fails_appends_nothing(durable_worker: Make) -> None:
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "5"), step("2", "t", "7")) == ["5", "7"]
    assert answered(worker, step("3", "s", "bad"), step("4", "t", "1")) == [(422, ""), "8"]
    assert answered(worker, step("5", "s", "3"), step("6", "t", "look")) == ["8", "8"]


def test_a_handler_without_rebuild_cannot_append(durable_worker: Make) -> None:
    worker = durable_worker(SUM.replace("def rebuild", "def another_name"))
    assert answered(worker, step("1", "s", "5")) == [(503, "")]


STORED = pytest.mark.parametrize("kind", ["file", "redis"], indirect=True)
DAMAGED, UNREADABLE = (500, "state_damaged"), (500, "handler_error")


def handler_of(worker: Worker) -> Any:
    return worker.service.entry_point.__self__


def stop_after(worker: Worker, *words: str) -> None:
    """Let a worker add these numbers in a sequence of its own and in one of others, and stop it."""
    for number, word in enumerate(words):
        assert len(answered(worker, step(f"s{number}", "s", word), step(f"t{number}", "t", word))) == 2
    worker.runtime.close()


@STORED
def test_another_worker_makes_the_states_of_their_logs(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM), "5", "7", "8")
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "1"), step("2", "t", "2")) == ["21", "22"]
    assert handler_of(worker).rebuilt == [([None, None], [[5, 7, 8], [5, 7, 8]])]


@STORED
def test_states_are_made_in_calls_of_a_limited_size(durable_worker: Make) -> None:
    first = durable_worker(SUM)
    assert answered(first, *(step(each, each, "1") for each in "abcde")) == ["1"] * 5
    first.runtime.close()
    worker = durable_worker(SUM, rebuilt_at_once=2)
    assert answered(worker, *(step(f"{each}2", each, "1") for each in "abcde")) == ["2"] * 5
    assert [len(states) for states, _ in handler_of(worker).rebuilt] == [2, 2, 1]


@STORED
def test_a_checkpoint_ends_the_log(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM, checkpoint_steps=3), *"12345")
    worker = durable_worker(SUM, checkpoint_steps=3)
    assert answered(worker, step("1", "s", "look")) == ["15"]
    assert handler_of(worker).rebuilt == [([10], [[5]])]


@STORED
def test_a_state_that_the_store_cannot_take_stays_a_log(durable_worker: Make) -> None:
    source = "from fractions import Fraction\n" + SUM.replace(
        "self.rebuilt = []", "self.rebuilt, self.zero = [], Fraction(0)"
    )
    source = source.replace("context.state.get(index, 0) + number", "context.state.get(index, self.zero) + number")
    stop_after(durable_worker(source, checkpoint_steps=2), *"12345")
    worker = durable_worker(source, checkpoint_steps=2)
    assert answered(worker, step("1", "s", "6")) == ["21"]
    assert handler_of(worker).rebuilt == [([None], [[1, 2, 3, 4, 5]])]


@STORED
def test_a_step_that_sets_a_state_and_appends_nothing_stores_the_state(durable_worker: Make) -> None:
    reset = 'if word == "reset":\n            context.state[index] = 100\n            return "100"'
    source = SUM.replace("        number = int", f"        {reset}\n        number = int")
    stop_after(durable_worker(source), "1", "reset", "2")
    worker = durable_worker(source)
    assert answered(worker, step("1", "s", "look")) == ["102"]
    assert handler_of(worker).rebuilt == [([100], [[2]])]


@STORED
def test_steps_that_append_nothing_have_their_place_in_the_log(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM), "1", "look", "2", "look")
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "look")) == ["3"]
    assert handler_of(worker).rebuilt == [([None], [[1, 2]])]


@STORED
def test_what_a_failed_row_has_appended_is_not_in_the_log(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM), "1", "bad", "2")
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "look")) == ["3"]


@STORED
def test_another_sequence_with_the_same_id_has_a_log_of_its_own(durable_worker: Make) -> None:
    first = durable_worker(SUM)
    assert answered(first, step("1", "s", "5")) == ["5"]
    assert answered(first, step("2", "s", "7", start=True)) == ["7"]
    assert answered(first, step("3", "s", "1", end=True)) == ["8"]
    assert answered(first, step("4", "s", "9", start=True)) == ["9"]
    first.runtime.close()
    worker = durable_worker(SUM)
    assert answered(worker, step("5", "s", "1")) == ["10"]
    assert handler_of(worker).rebuilt == [([None], [[9]])]


@STORED
def test_a_sequence_whose_state_cannot_be_made_costs_no_other_anything(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM), "5")
    first = durable_worker(SUM)
    assert answered(first, step("1", "bad luck", "13")) == ["13"]
    first.runtime.close()
    source = SUM.replace(
        "        self.rebuilt.append", "        assert [13] not in entries\n        self.rebuilt.append"
    )
    worker = durable_worker(source)
    told = answered(worker, step("2", "s", "1"), step("3", "bad luck", "1"), step("4", "t", "1"))
    assert told == ["6", UNREADABLE, "6"]
    assert answered(durable_worker(SUM), step("5", "bad luck", "1")) == ["14"]


@STORED
def test_a_handler_without_rebuild_cannot_continue_a_log(durable_worker: Make) -> None:
    stop_after(durable_worker(SUM), "5")
    worker = durable_worker(SUM.replace("def rebuild", "def another_name"))
    assert answered(worker, step("1", "s", "look")) == [UNREADABLE]


@pytest.fixture
def log_of(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Change the log of the sequence ``s``: "damage" an entry, or "lose" it."""

    def change_file(what: str) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "sequences.db")) as file, file:
            where = "WHERE number = 2 AND sequence = (SELECT number FROM sequences WHERE id = CAST('s' AS BLOB))"
            change = "DELETE FROM log" if what == "lose" else "UPDATE log SET entry = zeroblob(20)"
            assert file.execute(f"{change} {where}").rowcount == 1

    def change_redis(what: str) -> None:
        redis = pytest.importorskip("redis")
        with redis.Redis.from_url(request.getfixturevalue("redis_server").url) as client:
            key = f"tsq:{{{tmp_path.name}}}log:s"
            client.lset(key, 1, b"damaged")
            if what == "lose":
                client.lrem(key, 1, b"damaged")

    return change_file if kind == "file" else change_redis


@STORED
@pytest.mark.parametrize("what", ["damage", "lose"])
def test_an_entry_that_is_damaged_or_lost_costs_its_sequence_alone(
    durable_worker: Make, log_of: Callable[[str], None], what: str
) -> None:
    stop_after(durable_worker(SUM), "5", "7", "8")
    log_of(what)
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "1"), step("2", "t", "1")) == [DAMAGED, "21"]
    assert answered(worker, step("3", "s", "1", start=True)) == ["1"]


def examined(maintenance: Maintenance, model: str) -> dict[str, Examined]:
    return {each.sequence_id: each for each in maintenance.examine() if each.model == model}


@STORED
def test_a_log_moves_to_another_store_and_back(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    stop_after(durable_worker(SUM, checkpoint_steps=2), "5", "7", "8")
    file = tmp_path / "export"
    with file.open("wb") as out:
        found = examined(maintenance, tmp_path.name).values()
        assert write_sequences([each.sequence for each in found if each.sequence is not None], out) == 2
    with file.open("rb") as exported:
        for sequence in read_sequences(exported):
            assert not isinstance(sequence, Damaged)
            assert maintenance.write(sequence, replace=True)
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "1"), step("2", "t", "2")) == ["21", "22"]


@STORED
def test_a_damaged_log_is_found_and_repaired(
    durable_worker: Make, maintenance: Maintenance, log_of: Callable[[str], None], tmp_path: Path
) -> None:
    stop_after(durable_worker(SUM), "5", "7", "8")
    log_of("damage")
    found = examined(maintenance, tmp_path.name)
    assert not found["t"].problems
    assert "an entry of its log" in found["s"].problems[0]
    repaired = [each.sequence_id for each in maintenance.repair() if each.model == tmp_path.name]
    assert repaired == ["s"]
    assert not examined(maintenance, tmp_path.name)["s"].problems
    worker = durable_worker(SUM)
    assert answered(worker, step("1", "s", "4"), step("2", "t", "2")) == ["4", "22"]


@pytest.mark.parametrize(("source", "written"), [(SUM, "entries"), (SUM.replace("rebuild", "other"), "state")])
def test_the_model_declares_what_its_steps_write(durable_worker: Make, kind: str, source: str, written: str) -> None:
    assert durable_worker(source).runtime.declares["sequence_states"] == {"store": kind, "stepsWrite": written}
