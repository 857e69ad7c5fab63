"""Weights of config.properties, of an operator, and of a snapshot, without workers."""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, write_model

from torchserve_py.base.settings.model_spec import parse_model_specs
from torchserve_py.base.settings.schemas.versions import SavedModel, VersionSettings
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot, parse_snapshot
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.versions.traffic.first_weights import FirstWeights
from torchserve_py.versions.traffic.traffic_settings import read_weights

pytestmark = pytest.mark.usefixtures("no_workers")

#: config.properties has these.
FILE = {"models": {"m": {"1": VersionSettings(weight=90), "2": VersionSettings(weight=10)}}}


class Server:
    """A registry, and what the management API does to it."""

    def __init__(self, registry: ModelRegistry, settings: dict[str, Any]) -> None:
        self.registry = registry
        origins = {"traffic": settings.pop("origin", "config.properties:3")}
        made = server_settings().model_construct(enable_model_api=True, **settings)
        made.origins.update(origins)
        self.calls = ManagementCalls(made, registry)
        self.first = FirstWeights(made, registry, self.calls)

    @property
    def weights(self) -> Mapping[str, int]:
        return self.registry.weights("m")

    async def register(self, version: str) -> None:
        await self.calls.register({"url": version, "initial_workers": 0})

    def snapshot(self) -> Snapshot:
        """Return what is written and read again."""
        return parse_snapshot(str(Snapshot("", 0, tuple(self.registry.saved_models()))))


@pytest.fixture
def start(make_registry: MakeRegistry, store: Path) -> Callable[..., Awaitable[Server]]:
    for version in "123":
        model = {"modelName": "m", "modelVersion": version, "handler": "handler.py"}
        write_model(store / version, {"model": model})

    async def start(models: str = "1,2", **settings: Any) -> Server:
        """Start a server with these models, or with a ``model_snapshot``."""
        first = {"traffic": read_weights(settings["traffic"])} if "traffic" in settings else FILE
        settings = {**settings, **first, "load_models": tuple(parse_model_specs(models))}
        registry = make_registry(**{name: each for name, each in settings.items() if name != "origin"})
        await registry.load_startup_models()
        server = Server(registry, {"model_store": store, **settings})
        server.first.give()
        return server

    return start


def weigh(store: Path, version: str, weight: int) -> None:
    """Give a version a weight in its model-config.yaml."""
    manifest = store / version / "MAR-INF" / "MANIFEST.json"
    (store / version / "model-config.yaml").write_text(f"trafficWeight: {weight}\n")
    manifest.write_text(manifest.read_text().replace('"handler":', '"configFile": "model-config.yaml", "handler":'))


async def test_a_version_says_itself_what_it_gets_and_the_default_one_gets_the_rest(
    start: Callable[..., Awaitable[Server]], store: Path
) -> None:
    weigh(store, "2", 10)
    weigh(store, "3", 5)
    server = await start("1", traffic="")
    assert server.weights == {}
    await server.register("2")
    assert server.weights == {"1": 90, "2": 10}
    await server.register("3")
    assert server.weights == {"1": 85, "2": 10, "3": 5}
    await server.calls.unregister("m", "2")
    assert server.weights == {"1": 95, "3": 5}
    await server.calls.unregister("m", "3")
    assert server.weights == {}
    await server.register("2")
    await server.calls.set_weights("m", {"1": 50, "2": 50})
    await server.register("3")
    again = await start(traffic="", model_snapshot=server.snapshot())
    assert server.weights == again.weights == {"1": 50, "2": 50}


async def test_a_version_alone_gets_all_and_weights_that_leave_none_are_not_heeded(
    start: Callable[..., Awaitable[Server]], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weigh(store, "1", 60)
    weigh(store, "2", 50)
    server = await start("1", traffic="")
    assert server.weights == {}
    with caplog.at_level(logging.WARNING):
        await server.register("2")
    assert server.weights == {}
    assert "those of model m (1: 60, 2: 50) do not add up to 100" in caplog.text


@pytest.mark.parametrize("weights", [{}, {"2": 100}, {"1": 50, "2": 50}])
async def test_weights_of_an_operator_win_over_those_of_the_file_after_a_restart(
    start: Callable[..., Awaitable[Server]], weights: dict[str, int]
) -> None:
    server = await start()
    assert server.weights == {"1": 90, "2": 10}
    await server.calls.set_weights("m", weights)
    again = await start(model_snapshot=server.snapshot())
    assert again.weights == weights
    # Nor do they come back with a version that is registered later.
    await again.calls.unregister("m", "2")
    await again.register("2")
    await again.register("3")
    assert again.weights == {}  # version 1 was alone
    # Not even after one more restart.
    assert (await start(model_snapshot=again.snapshot())).weights == again.weights


async def test_a_snapshot_without_weights_leaves_them_to_the_file(start: Callable[..., Awaitable[Server]]) -> None:
    saved = tuple(SavedModel(name="m", version=version, location=version, min_workers=0) for version in "12")
    assert (await start(model_snapshot=Snapshot("", 0, saved))).weights == {"1": 90, "2": 10}


async def test_a_version_that_could_not_be_loaded_gets_its_weight_unless_an_operator_has_shared_it_out(
    start: Callable[..., Awaitable[Server]],
) -> None:
    server = await start("1")
    not_loaded = tuple(parse_model_specs("2"))
    first = server.snapshot()
    untouched = Snapshot("", 0, first.models, not_loaded)
    assert (await start(model_snapshot=untouched)).weights == {"1": 90, "2": 10}
    await server.calls.set_weights("m", {"1": 100})
    touched = Snapshot("", 0, server.snapshot().models, not_loaded)
    assert (await start(model_snapshot=touched)).weights == {"1": 100}


async def test_a_version_that_is_registered_later_has_its_weight_of_the_file(
    start: Callable[..., Awaitable[Server]],
) -> None:
    server = await start("1")
    assert server.weights == {"1": 90}
    await server.register("2")
    assert server.weights == {"1": 90, "2": 10}
    await server.calls.unregister("m", "2")
    assert server.weights == {"1": 90}
    await server.register("2")
    assert server.weights == {"1": 90, "2": 10}
    await server.calls.unregister("m", "2")
    await server.calls.set_weights("m", {})
    await server.register("2")
    assert server.weights == {}


async def test_what_takes_other_requests_gets_no_weight(
    start: Callable[..., Awaitable[Server]], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (store / "2" / "model-config.yaml").write_text(
        "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\nmaxNumSequence: 5\n"
    )
    manifest = (store / "2" / "MAR-INF" / "MANIFEST.json").read_text()
    named = manifest.replace('"handler"', '"configFile": "model-config.yaml", "handler"')
    (store / "2" / "MAR-INF" / "MANIFEST.json").write_text(named)
    with caplog.at_level(logging.WARNING):
        server = await start()
    assert server.weights == {}
    assert "at first are not heeded: Versions 1, 2 of model m take requests of different kinds" in caplog.text


async def test_a_flag_gives_weights_and_overrides_a_snapshot_and_the_file_does_not(
    start: Callable[..., Awaitable[Server]],
) -> None:
    server = await start(traffic="m=1:90,2:10")
    assert server.weights == {"1": 90, "2": 10}
    await server.calls.set_weights("m", {"1": 60, "2": 40})
    snapshot = server.snapshot()
    assert (await start(traffic="m=1:90,2:10", model_snapshot=snapshot)).weights == {"1": 60, "2": 40}
    for origin in ("flag --traffic", "environment variable TS_TRAFFIC"):
        again = await start(traffic="m=1:0,2:100", model_snapshot=snapshot, origin=origin)
        assert again.weights == {"2": 100}
    # Not for one server of a fleet, whose servers are to be the same.
    fleet = {"model_snapshot": snapshot, "origin": "flag --traffic", "fleet_state": "folder"}
    member = await start(traffic="m=1:90,2:10", **fleet)
    assert member.weights == {"1": 60, "2": 40}


@pytest.mark.parametrize(
    ("models", "traffic", "message"),
    [
        ("1", "m=1:90,2:10", "traffic (flag --traffic) has a weight for version 2 of model m, which has 1"),
        ("1", "n=1:100", "traffic (flag --traffic) has weights for model n, which is not served"),
        ("1,gone", "m=1:90,2:10", "which has 1; the log says why what is to be loaded is not"),
    ],
)
async def test_weights_of_what_is_not_there_keep_a_server_from_starting(
    start: Callable[..., Awaitable[Server]], models: str, traffic: str, message: str
) -> None:
    with pytest.raises(PluginUnavailable, match=re.escape(message)):
        await start(models, traffic=traffic, origin="flag --traffic")


async def test_weights_of_the_file_for_what_an_operator_has_unregistered_do_no_harm(
    start: Callable[..., Awaitable[Server]],
) -> None:
    server = await start(traffic="m=1:90,2:10")
    await server.calls.unregister("m", "2")
    assert (await start(traffic="m=1:90,2:10", model_snapshot=server.snapshot())).weights == {"1": 90}


async def test_weights_of_the_settings_add_up_to_100_while_a_version_is_gone(
    start: Callable[..., Awaitable[Server]],
) -> None:
    server = await start("1,2,3", traffic="m=1:80,2:15,3:5")
    await server.calls.unregister("m", "3")
    assert server.weights == {"1": 84, "2": 16}
    await server.register("3")
    assert server.weights == {"1": 80, "2": 15, "3": 5}
    await server.calls.set_weights("m", {"1": 50, "2": 25, "3": 25})
    await server.calls.unregister("m", "3")
    assert server.weights == {"1": 66, "2": 34}
    await server.register("3")
    assert server.weights == {"1": 66, "2": 34}
