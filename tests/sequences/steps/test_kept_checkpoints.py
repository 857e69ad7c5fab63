"""`keepCheckpoints`: sequences go back to earlier states that were stored whole."""

import importlib
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import pytest
from tests.redis_server import RedisServer
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import SUM, TOTAL, Make, answered, close, rewound, step
from tests.unit.ts.frontend_stub import Worker

from ts.sequences.steps.record import unpack_head
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.stores.earlier_step import NoStateThere, steps_with_state
from ts.sequences.steps.stores.maintenance import Maintenance, StoredSequence
from ts.sequences.steps.stores.sequence_fork import fork
from ts.sequences.steps.stores.store import Store, StoreSettings

TOKEN: Final = "token of s"
#: Its states are always written whole.
WHOLE: Final = SUM.replace("context.state.append(index, number)", "pass").replace("def rebuild", "def other")


def add(worker: Worker, words: str, first: int = 1) -> list[object]:
    """Let a worker add digits, in steps of the sequence ``s`` with numbers; return the answers."""
    numbered = enumerate(words, first)
    return [answered(worker, step(f"{n}", "s", word, number=n, token=TOKEN))[0] for n, word in numbered]


def stored(store: Maintenance, model: str, sequence_id: str = "s") -> StoredSequence:
    examined = store.examine_one(model, sequence_id)
    assert examined is not None and examined.sequence is not None and not examined.problems
    return examined.sequence


def possible(store: Maintenance, model: str) -> list[tuple[int, int]]:
    """The first and the last number of each run of steps to which the sequence ``s`` can go back."""
    return [(run[0], run[-1]) for run in steps_with_state(stored(store, model))]


def test_the_latest_states_are_kept_and_the_sequence_goes_back_to_each(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(WHOLE, kept_states=3)
    assert add(worker, "12345") == ["1", "3", "6", "10", "15"]
    close(worker, s="suspended")
    assert possible(maintenance, tmp_path.name) == [(3, 5)]
    with pytest.raises(NoStateThere, match="after step 2; the store has its state after steps 3 to 5"):
        rewound(maintenance, tmp_path.name, "s", 2)
    token = rewound(maintenance, tmp_path.name, "s", 3)
    assert possible(maintenance, tmp_path.name) == [(3, 3)]
    assert answered(worker, step("a", "s", "9", number=4, token=token)) == ["15"]
    close(worker, s="suspended")
    token = rewound(maintenance, tmp_path.name, "s", 3)
    assert answered(worker, step("b", "s", "8", number=4, token=token)) == ["14"]


def test_states_that_are_changed_in_place_are_kept_as_they_were(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(TOTAL, kept_states=4)
    assert add(worker, "1234") == ["1", "3", "6", "10"]
    close(worker, s="suspended")
    token = rewound(maintenance, tmp_path.name, "s", 2)
    assert answered(worker, step("a", "s", "5", number=3, token=token)) == ["8"]


def test_another_worker_goes_on_with_the_latest_state(durable_worker: Make) -> None:
    first = durable_worker(WHOLE, kept_states=3)
    add(first, "12345")
    first.runtime.close()
    second = durable_worker(WHOLE, kept_states=3)
    assert add(second, "6", first=6) == ["21"]
    assert second.service.entry_point.__self__.rebuilt == []


def test_a_worker_that_takes_a_sequence_over_reads_its_present_state_alone(
    durable_worker: Make, cache_settings: CacheSettings, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(SUM, kept_states=3, checkpoint_steps=2)
    add(worker, "123456789")  # whole after 3, 6 and 9
    close(worker, s="suspended")
    rewound(maintenance, tmp_path.name, "s", 7)
    store = store_of(cache_settings(), tmp_path.name)
    acquired = store.acquire(["s"])[0]
    store.close()
    assert [(each.number, [*each.earlier]) for each in acquired.log] == [(6, [3]), (7, [])]


def store_of(cache: dict[str, Any], model: str) -> Store:
    """The store of a worker, without the worker."""
    wanted = {each.name for each in fields(StoreSettings)}
    settings = {name: value for name, value in cache.items() if name in wanted}
    opening = importlib.import_module(cache["module"])
    opened: Store = opening.open_store(StoreSettings(model=model, version="1.0", **settings), cache)
    return opened


@pytest.mark.parametrize("kind", ["redis"], indirect=True)
@pytest.mark.parametrize("skip", ["99", "-99", "many", "1"])
def test_where_the_present_state_is_may_be_damaged(
    durable_worker: Make, redis_server: RedisServer, maintenance: Maintenance, tmp_path: Path, skip: str
) -> None:
    import redis

    worker = durable_worker(WHOLE, kept_states=3)
    add(worker, "12345")
    worker.runtime.close()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.hget(f"tsq:{{{tmp_path.name}}}:s", "skip") == b"2"
        client.hset(f"tsq:{{{tmp_path.name}}}:s", "skip", skip)
    examined = maintenance.examine_one(tmp_path.name, "s")
    assert examined is not None and bool(examined.problems) == (skip != "1")
    assert add(durable_worker(WHOLE, kept_states=3), "6", first=6) == ["21"]
    assert possible(maintenance, tmp_path.name) == [(4, 6)]


def test_an_answer_from_long_ago_does_not_take_the_place_of_the_last_step(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path
) -> None:
    worker = durable_worker(WHOLE, kept_states=3)
    add(worker, "1" * 5)
    close(worker, s="suspended")
    token = rewound(maintenance, tmp_path.name, "s", 5)
    last = 5 + MOST_KEPT_ANSWERS
    for number in range(6, last + 2):
        answered(worker, step(f"{number}", "s", "1", number=number, token=token))
    close(worker, s="suspended")
    token = rewound(maintenance, tmp_path.name, "s", last)
    assert answered(worker, step("late", "s", "1", number=last, token=token)) == [f"{last}"]
    assert answered(worker, step("next", "s", "1", number=last + 1, token=token)) == [f"{last + 1}"]


def test_the_log_between_kept_states_is_kept(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    worker = durable_worker(SUM, kept_states=2, checkpoint_steps=3)
    add(worker, "123456789")  # whole after 4 and 8
    close(worker, s="suspended")
    assert possible(maintenance, tmp_path.name) == [(4, 9)]
    token = rewound(maintenance, tmp_path.name, "s", 6)
    assert answered(worker, step("a", "s", "look", number=7, token=token)) == ["21"]
    assert worker.service.entry_point.__self__.rebuilt[-1] == ([10], [[5, 6]])


def test_settings_may_change_between_workers(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    total = 0
    number = 0
    seen = []
    for source, kept in ((WHOLE, 1), (WHOLE, 5), (WHOLE, 2), (WHOLE, 1), (SUM, 5), (SUM, 2), (SUM, 1)):
        worker = durable_worker(source, kept_states=kept, checkpoint_steps=2)
        for _ in range(4):
            number += 1
            total += number
            assert answered(worker, step(f"{number}", "s", f"{number}", number=number, token=TOKEN)) == [f"{total}"]
        worker.runtime.close()
        seen.append(possible(maintenance, tmp_path.name))
    # What a worker without kept states has written whole begins anew.
    assert seen == [[(4, 4)], [(5, 8)], [(11, 12)], [(16, 16)], [(19, 20)], [(19, 24)], [(28, 28)]]


def test_a_sequence_without_a_state_begins_anew(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    worker = durable_worker(TOTAL, kept_states=5)
    for number, word in enumerate(["1", "2", "forget", "3", "4"], 1):
        answered(worker, step(f"{number}", "s", word, number=number, token=TOKEN))
    close(worker, s="suspended")
    assert possible(maintenance, tmp_path.name) == [(4, 5)]
    token = rewound(maintenance, tmp_path.name, "s", 4)
    assert answered(worker, step("a", "s", "5", number=5, token=token)) == ["8"]


def test_a_fork_has_the_kept_states_as_well(durable_worker: Make, maintenance: Maintenance, tmp_path: Path) -> None:
    worker = durable_worker(WHOLE, kept_states=3)
    add(worker, "1234")
    assert maintenance.write(fork(stored(maintenance, tmp_path.name), "f", 3), replace=False)
    token = rewound(maintenance, tmp_path.name, "f", 2)
    assert answered(worker, step("a", "f", "9", number=3, token=token)) == ["12"]
    assert add(worker, "5", first=5) == ["15"]


def test_a_version_that_migrates_does_not_go_back_before_that(
    make_worker: Callable[..., Worker], cache_settings: CacheSettings, maintenance: Maintenance, tmp_path: Path
) -> None:
    def worker_of(version: str, source: str) -> Worker:
        cache = cache_settings(kept_states=5)
        return make_worker(source, model_name=tmp_path.name, model_version=version, sequences=True, cache=cache)

    old = worker_of("1", WHOLE)
    add(old, "123")
    old.runtime.close()
    migrating = WHOLE + "\n    def migrate(self, state, from_version):\n        return state + 1000\n"
    new = worker_of("2", migrating)
    assert add(new, "45", first=4) == ["1010", "1015"]
    close(new, s="suspended")
    assert possible(maintenance, tmp_path.name) == [(4, 5)]


@dataclass
class Damage:
    """Damages the piece of a step in the store."""

    kind: str
    model: str
    file: Path
    url: str

    def __call__(self, place: int) -> None:
        if self.kind == "redis":
            import redis

            with redis.Redis.from_url(self.url) as client:
                client.lset(f"tsq:{{{self.model}}}log:s", place, b"damaged")
            return
        with sqlite3.connect(self.file) as file:
            numbers = [each for (each,) in file.execute("SELECT number FROM log ORDER BY number")]
            file.execute("UPDATE log SET entry = ? WHERE number = ?", (b"damaged", numbers[place]))
        file.close()


@pytest.fixture
def damage(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Damage:
    server: RedisServer | None = request.getfixturevalue("redis_server") if kind == "redis" else None
    return Damage(kind, tmp_path.name, tmp_path / "sequences.db", server.url if server else "")


def test_a_damaged_earlier_state_costs_that_bookmark_alone(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, damage: Damage
) -> None:
    first = durable_worker(WHOLE, kept_states=4)
    add(first, "12345")
    first.runtime.close()
    examined = maintenance.examine_one(tmp_path.name, "s")  # which brings all of it into the tables
    damage(1)
    examined = maintenance.examine_one(tmp_path.name, "s")
    assert examined is not None and examined.sequence is not None
    assert [each for each in examined.problems if "its present state is readable" in each]
    assert [(run[0], run[-1]) for run in steps_with_state(examined.sequence)] == [(2, 2), (4, 5)]
    with pytest.raises(NoStateThere, match="the store has its state after steps 2, 4 to 5"):
        fork(examined.sequence, "f", 3)
    worker = durable_worker(WHOLE, kept_states=4)
    assert add(worker, "6", first=6) == ["21"]
    close(worker, s="suspended")
    repaired = [each.sequence_id for each in maintenance.repair() if each.model == tmp_path.name]
    assert repaired == ["s"]
    assert possible(maintenance, tmp_path.name) == [(4, 6)]
    assert add(worker, "7", first=7) == ["28"]


def test_a_damaged_present_state_is_an_error(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, damage: Damage
) -> None:
    first = durable_worker(WHOLE, kept_states=4)
    add(first, "12345")
    first.runtime.close()
    maintenance.examine_one(tmp_path.name, "s")
    damage(-1)
    assert add(durable_worker(WHOLE, kept_states=4), "6", first=6) == [(500, "state_damaged")]


@dataclass
class _Known:
    """What the clients know of a sequence: its token, and the numbers that were added, in order."""

    token: str
    added: list[int] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("source", [SUM, WHOLE])
def test_going_back_at_random_never_contradicts_what_clients_know(
    durable_worker: Make, maintenance: Maintenance, tmp_path: Path, seed: int, source: str
) -> None:
    chance = random.Random(seed)
    known = {"s": _Known(TOKEN)}
    kept = 4
    worker = durable_worker(source, checkpoint_steps=3, kept_states=kept)
    for turn in range(60):
        name = chance.choice(sorted(known))
        one = known[name]
        act = chance.choice(["step", "step", "step", "late", "fork", "rewind", "worker", "suspend"])
        if act == "step" or not one.added:
            one.added.append(chance.randrange(1, 100))
            sent = step(f"{turn}", name, str(one.added[-1]), number=len(one.added), token=one.token)
            assert answered(worker, sent) == [str(sum(one.added))]
        elif act == "late":
            number = chance.randint(1, len(one.added))
            sent = step(f"{turn}", name, str(one.added[number - 1]), number=number, token=one.token)
            assert answered(worker, sent)[0] in {str(sum(one.added[:number])), (409, "step_applied")}
        elif act in {"fork", "rewind"}:
            close(worker, **{name: "suspended"})
            steps = [each for run in steps_with_state(stored(maintenance, tmp_path.name, name)) for each in run]
            assert steps[-1] == len(one.added)
            after = chance.choice(steps)
            if act == "rewind":
                one.token = rewound(maintenance, tmp_path.name, name, after)
                del one.added[after:]
            else:
                made = fork(stored(maintenance, tmp_path.name, name), f"f{turn}", after)
                assert maintenance.write(made, replace=False)
                known[f"f{turn}"] = _Known(unpack_head(made.head).token, one.added[:after])
        elif act == "worker":
            worker.runtime.close()
            kept = chance.choice([1, 2, 4, 4])
            worker = durable_worker(source, checkpoint_steps=3, kept_states=kept)
        else:
            close(worker, **{name: "suspended"})
