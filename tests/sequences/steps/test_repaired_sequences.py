"""What clients are told of a sequence whose head was damaged, once the store is repaired."""

import sqlite3
from pathlib import Path

import pytest
from tests.sequences.steps.stepping import TOTAL, Make, answered, step

from ts.sequences.redis import open_redis
from ts.sequences.sqlite import open_sqlite

redis = pytest.importorskip("redis")


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The store, as the commands of an operator name it."""
    return request.getfixturevalue("redis_server").url if kind == "redis" else str(tmp_path / "sequences.db")


def repair_without_head(place: str, model: str, sequence_id: str) -> None:
    if place.startswith("redis:"):
        with redis.Redis.from_url(place) as operator:
            assert not operator.hset(f"tsq:{{{model}}}:{sequence_id}", "head", b"garbage"), "it has no head"
    else:
        with sqlite3.connect(place) as operator:
            assert operator.execute("UPDATE sequences SET head = x'00'").rowcount == 1
    maintenance = (open_redis if place.startswith("redis:") else open_sqlite).open_maintenance(place, create=False)
    # To its end: other tests' sequences may be damaged as well.
    repaired = {(each.model, each.sequence_id) for each in maintenance.repair()}
    maintenance.close()
    assert (model, sequence_id) in repaired


def test_its_token_is_known_to_be_over_and_its_id_can_be_used_again(
    place: str, durable_worker: Make, tmp_path: Path
) -> None:
    holder = durable_worker(TOTAL)
    first, second = step("j1", "s", "5", number=1, token="old"), step("j2", "s", "1", number=2, token="old")
    assert answered(holder, first) == ["5"]
    assert answered(holder, second) == ["6"]
    holder.service.steps.close()  # type: ignore[union-attr]
    repair_without_head(place, tmp_path.name, "s")
    worker = durable_worker(TOTAL)
    assert answered(worker, first) == [(409, "step_applied")]
    assert answered(worker, second) == [(410, "sequence_ended")]
    assert answered(worker, step("j3", "s", "1", number=3, token="old")) == [(410, "sequence_ended")]
    assert answered(worker, step("j4", "s", "5", number=1, token="new")) == ["5"]
    assert answered(worker, step("j5", "s", "1", number=2, token="new")) == ["6"]
