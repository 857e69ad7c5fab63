"""Sequences that a worker of an earlier release, whose records had no numbers and tokens, has left in its store, go on.

`earlier_release` has what that worker wrote for the handler TOTAL: an open sequence with 7 steps, one that is over, one
that was begun again, one whose client sent no ids, and one that was in the tables and in the journal of a file.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.conftest import CacheSettings
from tests.sequences.steps.stepping import TOTAL, answered, step
from tests.unit.ts.frontend_stub import Worker

HERE = Path(__file__).parent / "earlier_release"
#: For how long the open sequences may still be idle (ms).
LEFT = 600_000


def write_file(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript((HERE / "file_store.sql").read_text())
    database.close()


def write_redis(url: str) -> None:
    """Write the keys; Redis' clock is not the one of then."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(url) as client:
        expires = client.time()[0] * 1000 + LEFT
        for key, fields in json.loads((HERE / "redis_store.json").read_text()).items():
            client.hset(key, mapping={name: value.encode("latin-1") for name, value in fields.items()})
            client.hset(key, "expires", expires)
            client.pexpire(key, 2 * LEFT)


@pytest.fixture
def worker(
    kind: str, make_worker: Callable[..., Worker], cache_settings: CacheSettings, request: pytest.FixtureRequest
) -> Worker:
    cache = cache_settings()
    if kind == "file":
        write_file(Path(cache["path"]))
    else:
        write_redis(request.getfixturevalue("redis_server").url)
    return make_worker(TOTAL, model_name="tally", model_version="1.0", sequences=True, cache=cache)


def test_sequences_of_an_earlier_release_go_on(worker: Worker, kind: str) -> None:
    count = 0

    def say(sequence_id: str, body: str, **claims: Any) -> Any:
        nonlocal count
        count += 1
        (told,) = answered(worker, step(f"new {count}", sequence_id, body, **claims))
        return told

    kept = {"r1": "1", "r5": "15", "r6": "21", "r7": "28"}
    assert {name: say("open", name[1:], request_id=name) for name in kept} == kept, "repetitions get their answers"
    assert say("open", "8", request_id="r8") == "36"
    assert say("open", "1", number=9) == "37"
    assert say("open", "1", number=9) == "37"
    assert say("open", "1", number=10, token="made up") == (410, "sequence_unknown")
    assert say("over", "1", request_id="o2") == "6"
    assert say("over", "4", request_id="o3") == "4", "a new id begins the next one"
    assert say("again", "1", request_id="b2") == "11"
    assert say("again", "1", request_id="b3") == "12"
    assert say("no ids", "4") == "7"
    if kind == "file":
        assert say("folded", "2", request_id="f2") == "3"
        assert say("folded", "1", request_id="f3") == "4"
