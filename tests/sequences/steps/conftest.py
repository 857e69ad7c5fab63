"""Fixtures: each kind of store, settled as the server does, and workers that use it."""

import importlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need_program
from tests.redis_server import RedisServer
from tests.sequences.steps.served import Served
from tests.unit.ts.frontend_stub import Worker

from ts.sequences.steps.server_identity import server_identity
from ts.sequences.steps.stores.maintenance import Maintenance

CacheSettings = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    need_program("redis-server")
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
        yield server


#: All kinds of stores: a module whose tests hold for all of them has a fixture ``kind`` with these.
KINDS = ["memory", "file", "redis"]
#: For single tests that hold for all of them, in a module whose other tests need a store that outlives a worker.
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, indirect=True)


@pytest.fixture(params=KINDS[1:])
def kind(request: pytest.FixtureRequest) -> str:
    """Tests that ask for this run with each kind of store that outlives a worker."""
    return str(request.param)


@pytest.fixture
def cache_settings(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> CacheSettings:
    """What the load message says, each time with the changes that are asked for."""
    url = request.getfixturevalue("redis_server").url if kind == "redis" else ""

    def settle(**changes: Any) -> dict[str, Any]:
        return {
            "store": kind,
            "module": {"file": "ts.sequences.sqlite.open_sqlite", "redis": "ts.sequences.redis.open_redis"}.get(
                kind, ""
            ),
            "durable": kind != "memory",
            "capacity": 100,
            "path": str(tmp_path / "sequences.db"),
            "fsync": False,
            "url": url,
            "replicas": 0,
            "owner": server_identity(),
            "lease": 10.0,
            "lifetime": 60.0,
            "kept": 3,
            "restart_expired": False,
            "require_start": False,
            "remembered": 86_400.0,
            "most_ids": 100_000,
            "most_memory": 0,
            "most_state": 2**28,
            "state_version": "",
            "checkpoint_steps": 100,
            "kept_states": 1,
            "rebuilt_at_once": 8,
            **changes,
        }

    return settle


@pytest.fixture
def durable_worker(
    make_worker: Callable[..., Worker], cache_settings: CacheSettings, tmp_path: Path
) -> Callable[..., Worker]:
    """Load a handler's source into a worker whose sequences have a store; the model is this test's alone."""

    def make(source: str, *, continuous: bool = False, **changes: Any) -> Worker:
        model_name = tmp_path.name
        cache = cache_settings(**changes)
        return make_worker(source, model_name=model_name, sequences=True, continuous=continuous, cache=cache)

    return make


@pytest.fixture
def served(
    make_worker: Callable[..., Worker], cache_settings: CacheSettings, kind: str, tmp_path: Path
) -> Iterator[Callable[..., Served]]:
    """Serve a handler's source as a server does that has one worker; the model is this test's alone."""
    made: list[Served] = []

    def serve(source: str, *, continuous: bool = False, require_start: bool = False, **changes: Any) -> Served:
        cache = cache_settings(require_start=require_start, **changes)

        def make() -> Worker:
            name = tmp_path.name
            return make_worker(source, model_name=name, sequences=True, continuous=continuous, cache=cache)

        batch_size = 4 if continuous else 1
        durable = kind != "memory"
        made.append(
            Served(make, durable=durable, continuous=continuous, batch_size=batch_size, require_start=require_start)
        )
        return made[-1]

    yield serve
    for each in made:
        each.close()


@pytest.fixture
def maintenance(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Maintenance]:
    place = str(tmp_path / "sequences.db") if kind == "file" else request.getfixturevalue("redis_server").url
    opening = importlib.import_module(
        {"file": "ts.sequences.sqlite.open_sqlite", "redis": "ts.sequences.redis.open_redis"}[kind]
    )
    maintenance = opening.open_maintenance(place, create=True)
    yield maintenance
    maintenance.close()
