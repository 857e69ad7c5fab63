"""Incidents of what servers write to: Redis, and the disk of snapshots."""

from __future__ import annotations

import subprocess

from tests.e2e.running_server import RunningServer, model_folder
from tests.incidents.scenes import WELL, Scene, is_well, metric
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


def _stored(scene: Scene, redis: RedisServer) -> RunningServer:
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
        causes = ("sequence_store", "outcome_unknown")
        scene.detect(lambda: sum(metric(server, "ts_outcomes_total", cause=each) for each in causes), "it is counted")
        redis.start()

        def goes_on() -> bool:
            answer = server.predict("m", "x", sequence="s")
            return answer.status_code == 200 and int(answer.text) >= 2

        scene.heal(goes_on, "the sequence goes on")


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
