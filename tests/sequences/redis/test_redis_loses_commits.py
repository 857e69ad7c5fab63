"""Redis comes back without its last moments, or fails over to a replica that lags: living workers write them again."""

from typing import Any

import pytest
from redis import Redis
from tests.redis_server import RedisServer
from tests.sequences.steps.stepping import SUM, TOTAL, Make, answered, step

pytestmark = pytest.mark.parametrize("kind", ["redis"])

Keys = dict[bytes, tuple[bytes, int]]


class Database:
    """What a Redis has of one model: it can be brought back to what it was, as a replica that lags has it."""

    def __init__(self, server: RedisServer, model: str) -> None:
        self._client = Redis.from_url(server.url)
        self._keys = f"tsq:{{{model}}}*"

    def copy(self) -> Keys:
        return {key: (self._client.dump(key), self._client.pttl(key)) for key in self._client.scan_iter(self._keys)}

    def restore(self, copied: Keys) -> None:
        for key in self._client.scan_iter(self._keys):
            self._client.delete(key)
        for key, (content, left) in copied.items():
            self._client.restore(key, max(left, 0), content)


@pytest.fixture
def database(redis_server: RedisServer, tmp_path: Any) -> Database:
    return Database(redis_server, tmp_path.name)


def numbered(number: int, body: str, token: str = "t") -> list[Any]:
    return step(f"{token}{number}{body}", "s", body, number=number, token=token)


MODELS = {
    "whole": (TOTAL, {}),
    "log": (SUM, {}),
    "log with checkpoints": (SUM, {"checkpoint_steps": 2}),
    "kept states": (TOTAL, {"kept_states": 3}),
}


@pytest.mark.parametrize("states", MODELS)
def test_what_was_acknowledged_is_there_again_after_the_next_step(
    durable_worker: Make, database: Database, states: str
) -> None:
    source, changes = MODELS[states]
    worker = durable_worker(source, **changes)
    assert answered(worker, numbered(1, "1")) == ["1"]
    assert answered(worker, numbered(2, "2")) == ["3"]
    before = database.copy()
    assert answered(worker, numbered(3, "3")) == ["6"]
    assert answered(worker, numbered(4, "4")) == ["10"]
    database.restore(before)
    assert answered(worker, numbered(5, "5")) == ["15"]
    assert answered(worker, numbered(6, "6")) == ["21"]
    other = durable_worker(source, **changes)  # the first one is gone without a word
    assert answered(other, numbered(6, "6")) == ["21"]
    assert answered(other, numbered(5, "5")) == ["15"]
    assert answered(other, numbered(4, "4")) == [(409, "step_applied")]
    assert answered(other, numbered(7, "7")) == ["28"]


@pytest.mark.parametrize("states", MODELS)
def test_a_lease_that_was_lost_as_well_is_taken_again(durable_worker: Make, database: Database, states: str) -> None:
    source, changes = MODELS[states]
    first = durable_worker(source, **changes)
    assert answered(first, numbered(1, "1")) == ["1"]
    first.runtime.close()
    before = database.copy()
    worker = durable_worker(source, **changes)
    assert answered(worker, numbered(2, "2")) == ["3"]
    assert answered(worker, numbered(3, "3")) == ["6"]
    database.restore(before)
    assert answered(worker, numbered(4, "4")) == ["10"]
    other = durable_worker(source, **changes)
    assert answered(other, numbered(4, "4")) == ["10"]
    assert answered(other, numbered(5, "5")) == ["15"]


@pytest.mark.parametrize("states", MODELS)
def test_a_sequence_that_was_lost_entirely_is_written_again(
    durable_worker: Make, database: Database, states: str
) -> None:
    source, changes = MODELS[states]
    worker = durable_worker(source, **changes)
    before = database.copy()
    for number in (1, 2):
        assert len(answered(worker, step(f"r{number}", "s", "1", request_id=f"r{number}"))) == 1
    database.restore(before)
    assert answered(worker, step("r3", "s", "1", request_id="r3")) == ["3"]
    other = durable_worker(source, **changes)
    assert answered(other, step("r3 again", "s", "1", request_id="r3")) == ["3"]
    assert answered(other, step("r1 again", "s", "1", request_id="r1")) == [(409, "step_applied")]
    assert answered(other, step("r4", "s", "1", request_id="r4")) == ["4"]


def test_the_last_step_of_all(durable_worker: Make, database: Database) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, numbered(1, "1")) == ["1"]
    before = database.copy()
    assert answered(worker, numbered(2, "2")) == ["3"]
    database.restore(before)
    assert answered(worker, numbered(3, "0")) == ["3"]  # which ends the sequence
    other = durable_worker(TOTAL)
    assert answered(other, numbered(3, "0")) == ["3"]
    assert answered(other, numbered(4, "1")) == [(410, "sequence_ended")]


def test_a_sequence_that_another_server_runs_meanwhile_is_its(durable_worker: Make, database: Database) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, numbered(1, "1")) == ["1"]
    before = database.copy()
    assert answered(worker, numbered(2, "2")) == ["3"]
    database.restore(before)
    client = database._client
    (key,) = [each for each in before if b"}:" in each]
    client.hset(key, mapping={"fence": "7", "owner": "another/1/1"})
    assert answered(worker, numbered(3, "3")) == [(409, "sequence_moved")]


GROWS = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        for index in range(len(data)):
            context.state[index] = context.state.get(index, b"") + bytes(int(context.body(index)))
        return [str(len(context.state[index])) for index in range(len(data))]
"""


def test_a_value_that_redis_never_takes_is_no_passing_failure(durable_worker: Make, redis_server: RedisServer) -> None:
    worker = durable_worker(GROWS)
    Redis.from_url(redis_server.url).config_set("proto-max-bulk-len", 2**20)
    try:
        assert answered(worker, step("1", "s", "1100000")) == [(500, "handler_error")]
        assert answered(worker, step("2", "s", "5")) == ["5"]
    finally:
        Redis.from_url(redis_server.url).config_set("proto-max-bulk-len", 512 * 2**20)
