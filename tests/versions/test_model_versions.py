"""A sequence stays with the version of the model that began it, whatever version new sequences begin with."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.programs import need_program
from tests.redis_server import RedisServer

# The answer says which version ran the step, and how many steps the state has had.
HANDLER = """
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]
        self.steps = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index)) for index in range(len(data))]

    def step(self, sequence_id):
        self.steps[sequence_id] = self.steps.get(sequence_id, 0) + 1
        return f"{self.version}:{self.steps[sequence_id]}"
"""
CONFIG_FILE = "model-config.yaml"
CONFIG = """
minWorkers: 1
maxWorkers: 1
sequenceBatching: true
sequenceMaxIdleMSec: 60000
maxNumSequence: 100
maxSequenceJobQueueSize: 8
handler:
  cache: {{{cache}}}
"""

#: What a step hears whose version has no server any more: for a minute the version may only be restarted.
WITHOUT_VERSION = {(409, "sequence_moved"), (410, "version_gone")}


class Store:
    """Where the versions of a model keep states."""

    def __init__(self, kind: str, directory: Path, redis: RedisServer | None = None) -> None:
        place = {"memory": "", "file": f", path: '{directory / 'sequences.db'}'"}.get(kind, "")
        if redis is not None:
            place = f", url: '{redis.url}'"
        self.kind = kind
        self._cache = f"store: {kind}{place}"
        self._directory = directory

    def version(self, version: str, more: str = "", handler: str = HANDLER) -> Path:
        """Write a version of the model."""
        folder = model_folder(self._directory / version, "count", handler, CONFIG.format(cache=self._cache + more))
        (folder / "MAR-INF").mkdir()
        model = {"modelName": "count", "modelVersion": version, "handler": "handler.py", "configFile": CONFIG_FILE}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
        return folder


@pytest.fixture(params=["memory", "file", "redis"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from _store(request.param, tmp_path)


@pytest.fixture(params=["file", "redis"])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from _store(request.param, tmp_path)


def _store(kind: str, directory: Path) -> Iterator[Store]:
    if kind != "redis":
        yield Store(kind, directory)
        return
    need_program("redis-server")
    (directory / "redis").mkdir()
    with RedisServer(directory / "redis") as redis:
        yield Store(kind, directory, redis)


def step(server: RunningServer, sequence: str, *, version: str = "", **headers: str) -> tuple[int, str]:
    """Send a step; return the status and the answer, or the cause of the failure."""
    path = f"count/{version}" if version else "count"
    answer = server.predict(path, "", sequence=sequence, headers=headers)
    if answer.status_code == 200:
        return 200, answer.text
    assert "ts-sequence-version" not in answer.headers
    return answer.status_code, answer.headers["ts-error-cause"]


def make_default(server: RunningServer, version: str) -> None:
    assert requests.put(f"{server.management}/models/count/{version}/set-default", timeout=DEADLINE).status_code == 200


def unregister(server: RunningServer, version: str) -> requests.Response:
    return requests.delete(f"{server.management}/models/count/{version}", timeout=DEADLINE)


def open_sequences(server: RunningServer) -> dict[str, int]:
    return {each["modelVersion"]: each["openSequences"] for each in server.describe("count", "/all")}


def test_a_sequence_stays_with_its_version_and_new_ones_begin_with_the_default(any_store: Store) -> None:
    with RunningServer({"count": any_store.version("1.0")}, {"unregister_model_timeout": 2}) as server:
        assert [step(server, "a"), step(server, "a"), step(server, "b")] == [
            (200, "1.0:1"),
            (200, "1.0:2"),
            (200, "1.0:1"),
        ]
        assert server.register(any_store.version("2.0")).status_code == 200
        make_default(server, "2.0")
        assert [step(server, "a"), step(server, "new")] == [(200, "1.0:3"), (200, "2.0:1")]
        assert open_sequences(server) == {"1.0": 2, "2.0": 1}
        # Another version that is named never gets the sequence, nor an empty state.
        assert step(server, "a", version="2.0") == (409, "sequence_moved")
        assert step(server, "new", version="1.0") == (409, "sequence_moved")
        for meant in ("1.0", "2.0"):
            assert server.metric("ts_outcomes_total", cause="sequence_moved", model_version=meant) == 1
        assert step(server, "a", version="1.0") == (200, "1.0:4")
        # When it has ended, its id begins with the default.
        assert step(server, "a", ts_request_sequence_end="true") == (200, "1.0:5")
        assert step(server, "a") == (200, "2.0:1")

        # The version waits for its open sequence only so long.
        assert unregister(server, "1.0").status_code == 200
        if any_store.kind == "memory":
            assert step(server, "b") == (410, "sequence_lost")
            assert step(server, "b", ts_request_sequence_start="true") == (200, "2.0:1")
        else:
            assert step(server, "b") in WITHOUT_VERSION
        assert step(server, "new") == (200, "2.0:2")


def test_a_version_that_is_unregistered_runs_its_sequences_to_their_end(any_store: Store) -> None:
    with RunningServer({"count": any_store.version("1.0")}) as server:
        assert step(server, "a") == (200, "1.0:1")
        assert server.register(any_store.version("2.0")).status_code == 200
        make_default(server, "2.0")
        removal = threading.Thread(target=unregister, args=(server, "1.0"))
        removal.start()
        eventually(lambda: server.describe("count", "/1.0")[0].get("unregistering"), "it is being unregistered")
        assert step(server, "new", version="1.0") == (503, "unregistered")
        assert step(server, "a") == (200, "1.0:2")
        assert step(server, "a", version="1.0") == (200, "1.0:3")
        assert step(server, "new") == (200, "2.0:1")
        assert step(server, "a", ts_request_sequence_end="true") == (200, "1.0:4")
        removal.join(DEADLINE)
        assert open_sequences(server) == {"2.0": 1}
        assert step(server, "a") == (200, "2.0:1")


def test_two_servers_with_different_versions_never_fork_a_sequence(shared_store: Store) -> None:
    with (
        RunningServer({"count": shared_store.version("1.0")}) as first,
        RunningServer({"count": shared_store.version("2.0")}) as second,
    ):
        assert step(first, "a") == (200, "1.0:1")
        for _ in range(3):
            assert step(second, "a") == (409, "sequence_moved")
        assert step(first, "a") == (200, "1.0:2")
        assert step(second, "b") == (200, "2.0:1")
        assert step(first, "b") == (409, "sequence_moved")
        first.terminate()
        assert step(second, "a") in WITHOUT_VERSION


def test_a_server_with_both_versions_continues_what_another_one_began(shared_store: Store) -> None:
    one, two = shared_store.version("1.0"), shared_store.version("2.0")
    with RunningServer({"count": one}) as first, RunningServer({"count": two}) as second:
        assert second.register(one).status_code == 200
        assert step(first, "a") == (200, "1.0:1")
        assert step(second, "a") == (200, "1.0:2")
        assert step(second, "a", version="2.0") == (409, "sequence_moved")
        assert step(first, "a") == (200, "1.0:3")
        assert step(second, "a") == (200, "1.0:4")


def test_after_a_restart_a_stored_sequence_is_still_its_versions(shared_store: Store) -> None:
    one, two = shared_store.version("1.0"), shared_store.version("2.0")
    with RunningServer({"count": two}) as server:
        assert server.register(one).status_code == 200
        assert step(server, "a", version="1.0") == (200, "1.0:1")
        server.terminate()
        server.output.unlink()
        server.start()
        assert step(server, "a") in WITHOUT_VERSION
        assert server.register(one).status_code == 200
        assert step(server, "a") == (200, "1.0:2")


def test_versions_that_read_each_others_states_continue_each_others_sequences(shared_store: Store) -> None:
    one, two = (shared_store.version(version, ", stateVersion: a") for version in ("1.0", "2.0"))
    with RunningServer({"count": one}) as first, RunningServer({"count": two}) as second:
        assert [step(first, "a"), step(second, "a")] == [(200, "1.0:1"), (200, "2.0:2")]
        assert first.register(two).status_code == 200
        make_default(first, "2.0")
        assert [step(first, "a"), step(first, "a", version="1.0")] == [(200, "2.0:3"), (200, "1.0:4")]
        assert unregister(first, "1.0").status_code == 200
        assert step(first, "a") == (200, "2.0:5")


def test_what_was_in_memory_is_lost_with_the_version_and_no_later_one_begins_from_nothing(tmp_path: Path) -> None:
    store = Store("memory", tmp_path)
    one = store.version("1.0")
    with RunningServer({"count": one}) as server:
        assert step(server, "a") == (200, "1.0:1")
        assert unregister(server, "1.0").status_code == 200
        assert server.register(one).status_code == 200
        assert [step(server, "a"), step(server, "b")] == [(410, "sequence_lost"), (200, "1.0:1")]
        assert step(server, "a", ts_request_sequence_start="true") == (200, "1.0:1")


#: Version 1's state is a number, and version 2's a dict; one with more than 99 steps cannot be migrated.
MIGRATING = HANDLER.replace(
    """        self.steps[sequence_id] = self.steps.get(sequence_id, 0) + 1
        return f"{self.version}:{self.steps[sequence_id]}"
""",
    """        state = self.steps.get(sequence_id, {"steps": 0})
        state["steps"] += 1
        self.steps[sequence_id] = state
        return f"{self.version}:{state['steps']}"

    def migrate(self, state, from_version):
        if state > 99:
            raise ValueError("too long")
        return {"steps": state}
""",
)
LONG = HANDLER.replace("get(sequence_id, 0) + 1", "get(sequence_id, 100 if 'stays' in sequence_id else 0) + 1")


def test_sequences_move_to_a_version_that_migrates_their_states(shared_store: Store) -> None:
    one, two = shared_store.version("1.0", handler=LONG), shared_store.version("2.0", handler=MIGRATING)
    with RunningServer({"count": one}, {"unregister_model_timeout": 2}) as server:
        for sequence in ("moves", "rests", "ends", "stays", "named"):
            assert step(server, sequence)[0] == 200
        assert server.register(two).status_code == 200
        # While version 1 is the default, all stays as it is; who names the other version moves the sequence.
        assert step(server, "moves") == (200, "1.0:2")
        assert step(server, "named", version="2.0") == (200, "2.0:2")
        make_default(server, "2.0")
        assert [step(server, "moves"), step(server, "moves")] == [(200, "2.0:3"), (200, "2.0:4")]
        assert step(server, "moves", version="1.0") == (409, "sequence_moved")
        assert [step(server, "stays"), step(server, "stays")] == [(200, "1.0:102"), (200, "1.0:103")]
        assert step(server, "ends", ts_request_sequence_end="true") == (200, "2.0:2")
        assert step(server, "ends") == (200, "2.0:1")
        assert open_sequences(server) == {"1.0": 2, "2.0": 3}
        metrics = requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text
        counted = re.findall(
            r'^ts_(.+)_total\{model_name="count",model_version="2.0".* (\d)\.0$', metrics, re.MULTILINE
        )
        assert {("sequences_migrated", "3"), ("migration_failures", "1")} <= set(counted)

        # What cannot be migrated keeps the old version for a while; then its client hears why, and nothing is lost.
        assert unregister(server, "1.0").status_code == 200
        assert step(server, "rests") == (200, "2.0:2")
        assert step(server, "stays") in ((409, "sequence_moved"), (500, "migration_failed"))
        assert server.register(one).status_code == 200
        assert step(server, "stays") == (200, "1.0:104")


def test_a_server_with_the_next_version_alone_continues_what_another_one_began(shared_store: Store) -> None:
    one, two = shared_store.version("1.0", handler=LONG), shared_store.version("2.0", handler=MIGRATING)
    with RunningServer({"count": one}) as first, RunningServer({"count": two}) as second:
        assert [step(first, each) for each in ("a", "b", "stays")] == [(200, "1.0:1"), (200, "1.0:1"), (200, "1.0:101")]
        assert step(second, "a") == (200, "2.0:2")
        assert step(first, "a") == (409, "sequence_moved")
        assert step(second, "stays") == (409, "sequence_moved")
        assert step(first, "stays") == (200, "1.0:102")
        first.terminate()
        assert [step(second, each) for each in ("a", "b")] == [(200, "2.0:3"), (200, "2.0:2")]
