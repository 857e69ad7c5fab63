"""The Redis store: which Redis it refuses or warns of, and steps that only count once replicas have them."""

import logging
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import need_program
from tests.redis_server import DEADLINE, RedisServer
from tests.sequences.redis import redis_store_steps
from tests.sequences.redis.redis_store_steps import open_store, take
from tests.sequences.steps.stepping import TOTAL, Make, answered, step

from ts.sequences.redis.redis_keeping import check_keeping
from ts.sequences.steps.stores.store import StoreError


@pytest.fixture
def directory() -> Iterator[Path]:
    need_program("redis-server")
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_a_redis_that_drops_keys_when_its_memory_is_full_is_refused(directory: Path) -> None:
    told = r"has maxmemory-policy volatile-lru: .* Set maxmemory-policy noeviction"
    with RedisServer(directory, {"maxmemory-policy": "volatile-lru"}) as redis, pytest.raises(StoreError, match=told):
        open_store(redis.url)


def test_a_redis_that_forgets_is_told(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(directory, {"appendonly": "no"}) as redis:
        open_store(redis.url).close()
    assert "has appendonly no: sequences are lost when it ends" in caplog.text


def test_a_redis_that_tells_nothing_of_itself_is_believed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_keeping("h:1", {}, replicas=1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "h:1 does not tell its maxmemory-policy" in caplog.text


def test_replicas_that_are_not_there_are_told(caplog: pytest.LogCaptureFixture) -> None:
    check_keeping("h:1", {"maxmemory_policy": "noeviction", "aof_enabled": 1, "connected_slaves": 1}, replicas=2)
    assert "has 1 replicas now, and a step is answered only once 2 have it" in caplog.text


@pytest.mark.parametrize("kind", ["redis"])
def test_a_step_is_answered_once_the_replicas_have_it(durable_worker: Make, directory: Path, kind: str) -> None:
    (directory / "primary").mkdir()
    (directory / "replica").mkdir()
    with (
        RedisServer(directory / "primary") as primary,
        RedisServer(directory / "replica", {"replicaof": f"127.0.0.1 {primary.port}"}) as replica,
    ):
        wait_until_it_follows(primary)
        worker = durable_worker(TOTAL, url=primary.url, replicas=1, lease=10.0)
        assert answered(worker, step("j1", "s", "5")) == ["5"]
        replica.send(signal.SIGSTOP)
        try:
            assert answered(worker, step("j2", "s", "1", request_id="r")) == [(503, "outcome_unknown")]
            assert answered(worker, step("j3", "s", "1", request_id="r")) == [(503, "sequence_store")]
        finally:
            replica.send(signal.SIGCONT)
        assert answered(worker, step("j4", "s", "1", request_id="r")) == ["6"]
        assert answered(worker, step("j5", "s", "1")) == ["7"]


def wait_until_it_follows(primary: RedisServer) -> None:
    """Return when a replica has all that the primary has."""
    from redis import Redis

    end = time.monotonic() + DEADLINE
    with Redis.from_url(primary.url) as client:
        while client.set("probe", 1) and not client.wait(1, 100):
            assert time.monotonic() < end, "the replica does not follow"


def test_a_commit_that_was_tried_again_and_then_refused_may_have_been_written(redis_server: RedisServer) -> None:
    redis = pytest.importorskip("redis")
    mine, other = open_store(redis_server.url), open_store(redis_server.url)
    lease = take(mine, "again")
    commit, replies = mine._commit, iter([redis.ConnectionError("the reply was lost"), None])

    def unsteady(*arguments: object) -> object:
        result, lost = commit(*arguments), next(replies)
        if lost is not None:
            other.acquire(["again"])  # before it is tried again
            raise lost
        return result

    mine._commit = unsteady
    assert mine.commit([redis_store_steps.step(lease, "one")]) == [None]
    assert mine.find("again", 1, 1) == b"answer one"


@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:1/0", "redis+sentinel://127.0.0.1:1/main/0"])
@pytest.mark.parametrize(
    "option",
    ["connection_class", "redis_connect_func", "credential_provider", "decode_responses", "retry_on_error", "x"],
)
def test_options_that_name_code_or_nothing_are_refused(scheme: str, option: str) -> None:
    with pytest.raises(
        StoreError, match=f"the option '{option}' is unknown or not allowed; there are client_name"
    ) as told:
        open_store(f"{scheme}?client_name=me&{option}=secret")
    assert "secret" not in str(told.value)
