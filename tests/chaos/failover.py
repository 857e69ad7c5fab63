"""How many acknowledged commits are lost when Redis fails over under load, with and without `replicas`.

    python -m tests.chaos.failover --replicas 0 [--failovers 4] [--lag] [--freeze]

Writers commit states of new sequences to the store, eight at once, as fast as they can. The primary of three servers
under three Sentinels is killed, or frozen until a replica has been promoted; before that the replicas may lag behind.
Afterwards each acknowledged state is asked for. No sequence has a second commit, which would hide that the first was
lost.
"""

import argparse
import itertools
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from redis import Redis
from tests.redis_sentinels import FailoverRedis
from tests.redis_server import DEADLINE, RedisServer

from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.record import KeptStep
from ts.sequences.steps.stores.store import Commit, KeptAnswer, Lease, StoreError, StoreSettings

WRITERS = 3
BATCH = 8
STATE = b"state" * 1000
#: More than the buffers of a connection hold (bytes).
BUFFERED = 32 * 2**20
SETTINGS = StoreSettings(
    model="m",
    version="1",
    state_version="",
    owner="failover",
    lease=20.0,
    lifetime=3600.0,
    kept=2,
    remembered=3600.0,
    most_ids=1000,
)
_ASKED_AT_ONCE = 200


def _first(lease: Lease) -> Commit:
    """Return the commit of a sequence's first step."""
    lease.record.begin(lease.sequence_id, SETTINGS.version, "")
    step = KeptStep(1, "", b"")
    lease.record.apply(step, SETTINGS.kept)
    return Commit(lease, STATE, "", [KeptAnswer(step, b"")], b"", begins=True)


class Outcome(NamedTuple):
    """What became of the commits."""

    acknowledged: int
    lost: int


class Writer:
    """Commits in a thread of its own, from `start` to `stop`."""

    def __init__(self, name: str, url: str, replicas: int) -> None:
        self.acknowledged: list[str] = []
        self._names = (f"{name}-{number}" for number in itertools.count())
        self._url, self._replicas = url, replicas
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Wait until the last commit has its outcome."""
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        store = RedisStore(SETTINGS, self._url, replicas=self._replicas)
        while not self._stopping.is_set():
            ids = list(itertools.islice(self._names, BATCH))
            try:
                commits = [_first(each.lease) for each in store.acquire(ids) if each.lease is not None]
                done = store.commit(commits)
            except StoreError:
                continue  # the outcome is unknown, and nothing was acknowledged
            self.acknowledged += [
                each.lease.sequence_id for each, is_done in zip(commits, done, strict=True) if is_done
            ]
        store.close()


class Plan(NamedTuple):
    """What happens in a failover.

    replicas  how many must have a commit before it is acknowledged
    lag       whether the replicas have fallen behind when the primary is lost
    freeze    whether the primary freezes and wakes up, instead of being killed
    seconds   how long commits are written before and after
    """

    replicas: int
    lag: bool = False
    freeze: bool = False
    seconds: float = 2.0


def fail_over(redis: FailoverRedis, name: str, plan: Plan) -> Outcome:
    """Lose the primary under load; return what became of the commits."""
    writers = [Writer(f"{name}-{number}", redis.url, plan.replicas) for number in range(WRITERS)]
    for each in writers:
        each.start()
    time.sleep(plan.seconds)
    former = redis.find_primary()
    others = [each for each in redis.servers if each is not former]
    for each in others if plan.lag else ():
        each.send(signal.SIGSTOP)
    if plan.lag:
        _wait_for_writes(former, 1.0 if plan.replicas else DEADLINE)  # nothing is acknowledged without replicas
    former.send(signal.SIGSTOP)
    for each in others:
        each.send(signal.SIGCONT)
    if plan.freeze:
        redis.wait_promoted(former)
        former.send_signal(signal.SIGCONT)
    else:
        former.kill()
    redis.wait_failed_over(former)
    time.sleep(plan.seconds)
    for each in writers:
        each.stop()
    if not plan.freeze:
        former.start()
    redis.wait_whole()
    acknowledged = [each for writer in writers for each in writer.acknowledged]
    return Outcome(len(acknowledged), len(acknowledged) - sum(_kept(redis, acknowledged)))


def _wait_for_writes(primary: RedisServer, limit: float) -> None:
    """Wait until more was written than the connections to the replicas buffer, or so many seconds."""
    with Redis(port=primary.port) as client:
        end, target = time.monotonic() + limit, int(client.info("replication")["master_repl_offset"]) + BUFFERED
        while time.monotonic() < end and client.info("replication")["master_repl_offset"] < target:
            time.sleep(0.01)


def _kept(redis: FailoverRedis, ids: list[str]) -> Iterator[int]:
    """Yield of how many ids the store has the states."""
    store = RedisStore(SETTINGS, redis.url)
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        yield sum(each.state is not None for each in store.acquire(ids[start : start + _ASKED_AT_ONCE]))
    store.close()


def run(failovers: int, plan: Plan) -> Outcome:
    """Fail over so many times; return what became of all commits."""
    with tempfile.TemporaryDirectory(prefix="failover-") as directory, FailoverRedis(Path(directory)) as redis:
        outcomes = [fail_over(redis, f"failover-{number}", plan) for number in range(failovers)]
    return Outcome(sum(each.acknowledged for each in outcomes), sum(each.lost for each in outcomes))


def main() -> int:
    """Run from the command line; return 0 if nothing was lost that `replicas` should have kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, choices=(0, 1, 2), default=1)
    parser.add_argument("--failovers", type=int, default=4)
    parser.add_argument("--lag", action="store_true", help="let the replicas fall behind before")
    parser.add_argument("--freeze", action="store_true", help="freeze the primary until it was replaced; else kill it")
    options = parser.parse_args()
    outcome = run(options.failovers, Plan(options.replicas, options.lag, options.freeze))
    happened = "frozen" if options.freeze else "killed"
    lag = ", which lag" if options.lag else ""
    print(
        f"replicas {options.replicas}{lag}: {options.failovers} × primary {happened}, "
        f"{outcome.lost:,} of {outcome.acknowledged:,} commits lost"
    )
    return 1 if options.replicas and outcome.lost else 0


if __name__ == "__main__":
    sys.exit(main())
