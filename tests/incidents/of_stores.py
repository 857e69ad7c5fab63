"""Incidents of what servers write to: Redis, and the disks of snapshots and journals."""

from __future__ import annotations

import signal
import subprocess

import psutil
from tests.e2e.running_server import RunningServer, model_folder
from tests.incidents.scenes import WELL, Scene, is_well, metric
from tests.redis_sentinels import FailoverRedis
from tests.redis_server import RedisServer

_COUNTING = """
from ts.sequence import SequenceCache


class Counting:
    def initialize(self, context):
        self.counts = SequenceCache(context)

    def handle(self, data, context):
        ids = [context.get_sequence_id(index) for index in range(len(data))]
        self.counts.update((each, self.counts.get(each, 0) + 1) for each in ids)
        return [str(self.counts[each]) for each in ids]
"""
_SEQUENCES = "sequenceBatching: true\nmaxNumSequence: 100\nsequenceMaxIdleMSec: 600000\nminWorkers: 1\n"


#: Causes of steps that a store without answers fails.
_CAUSES = ("sequence_store", "outcome_unknown", "response_timeout")


def _stored(scene: Scene, redis: RedisServer | FailoverRedis) -> RunningServer:
    config = f"{_SEQUENCES}handler:\n  cache: {{store: redis, url: '{redis.url}', lease: 4}}\n"
    return RunningServer({"m": model_folder(scene.directory, "m", _COUNTING, config)})


def redis_stops(scene: Scene) -> None:
    """The Redis with the sequences is gone for some seconds."""
    (scene.directory / "redis").mkdir()
    with RedisServer(scene.directory / "redis") as redis, _stored(scene, redis) as server:
        server.wait_ready()
        scene.expect(server.predict("m", "x", sequence="s").text == "1", "the first step")
        redis.kill()
        scene.lost += server.predict("m", "x", sequence="s").status_code != 200
        scene.detect(lambda: _failed_steps(server), "it is counted")
        redis.start()
        scene.heal(lambda: _count(server) >= 2, "the sequence goes on")


def redis_lags(scene: Scene) -> None:
    """The Redis with the sequences stands still: it takes connections and answers nothing."""
    (scene.directory / "redis").mkdir()
    with RedisServer(scene.directory / "redis") as redis, _stored(scene, redis) as server:
        server.wait_ready()
        scene.expect(server.predict("m", "x", sequence="s").text == "1", "the first step")
        redis.send_signal(signal.SIGSTOP)
        try:
            _steps_fail(scene, server)
        finally:
            redis.send_signal(signal.SIGCONT)
        scene.heal(lambda: _count(server) >= 2, "the sequence goes on")


def redis_fails_over(scene: Scene) -> None:
    """The primary of the Redis with the sequences dies, and a replica takes its place."""
    with FailoverRedis(scene.directory) as redis, _stored(scene, redis) as server:
        server.wait_ready()
        told = max(_count(server) for _ in range(5))
        scene.expect(told == 5, "the first steps")
        redis.find_primary().kill()
        _steps_fail(scene, server)
        scene.heal(lambda: _count(server) > told, "the sequence goes on, with all its steps")


def _steps_fail(scene: Scene, server: RunningServer) -> None:
    """Send steps until one has failed and is counted; those without an answer are lost to their clients."""

    def is_counted() -> float:
        scene.lost += not _count(server)
        return _failed_steps(server)

    scene.detect(is_counted, "it is counted")


def _failed_steps(server: RunningServer) -> float:
    return sum(metric(server, "ts_outcomes_total", cause=each) for each in _CAUSES)


def _count(server: RunningServer) -> int:
    """Return the count that a step gets, 0 if it gets none."""
    answer = server.predict("m", "x", sequence="s")
    return int(answer.text) if answer.status_code == 200 else 0


def redis_evicts(scene: Scene) -> None:
    """Somebody sets an eviction policy under a running server."""
    (scene.directory / "redis").mkdir()
    with RedisServer(scene.directory / "redis") as redis, _stored(scene, redis) as server:
        server.wait_ready()
        scene.expect(server.predict("m", "x", sequence="s").text == "1", "the first step")
        _set_policy(redis, "allkeys-lru")
        scene.detect(lambda: metric(server, "ts_redis_evicts") or "allkeys-lru" in server.log(), "it is noticed")
        _set_policy(redis, "noeviction")
        scene.heal(lambda: not metric(server, "ts_redis_evicts"), "it is over")


def _set_policy(redis: RedisServer, policy: str) -> None:
    command = ["redis-cli", "-p", str(redis.port), "config", "set", "maxmemory-policy", policy]
    subprocess.run(command, check=True, capture_output=True)


def snapshots_cannot_be_written(scene: Scene) -> None:
    """A model is registered while the folder of the snapshots cannot be written."""
    model = model_folder(scene.directory, "m", WELL)
    late = model_folder(scene.directory, "late", WELL)
    server = RunningServer({"m": model})
    server.command.remove("--ncs")
    with server:
        server.wait_ready()
        folder, aside = server.directory / "logs" / "config", server.directory / "aside"
        folder.rename(aside)
        folder.write_text("this is no folder")
        scene.expect(server.register(late).status_code == 200, "the registration")
        scene.detect(lambda: "could not be written" in server.log(), "it is reported")
        folder.unlink()
        aside.rename(folder)
        scene.heal(
            lambda: any('"late"' in each.read_text() for each in folder.glob("*.cfg")), "the registration is written"
        )
        scene.expect(is_well(server, "late"), "the model answers")


def disk_of_the_journal_is_full(scene: Scene) -> None:
    """Nothing more can be written to any file of the server, as on a full disk."""
    with RunningServer({"m": model_folder(scene.directory, "m", WELL, "journal: on\n")}) as server:
        server.wait_ready()
        scene.expect(is_well(server, "m"), "the model answers")
        process = server.server
        soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
        process.rlimit(psutil.RLIMIT_FSIZE, (1, hard))

        def is_noticed() -> float:
            scene.lost += not is_well(server, "m")  # clients do not notice it
            return metric(server, "ts_journal_dropped_total")

        scene.detect(is_noticed, "it is counted")
        process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
        written = metric(server, "ts_journal_records_total")
        scene.heal(
            lambda: is_well(server, "m") and metric(server, "ts_journal_records_total") > written, "records are written"
        )
        scene.expect(scene.lost == 0, "each request was answered")
        journal = server.directory / "logs" / "journal"
        scene.expect(all(each.stat().st_size for each in journal.rglob("*.jsonl")), "no file is empty")
