"""What a server begins with: what its fleet serves, else its snapshot, else `load_models`."""

import logging
from pathlib import Path

import pytest
from redis import Redis
from tests.redis_server import RedisServer

from torchserve_py.base.settings.model_spec import parse_model_specs
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.handover.storage import HAS, Known
from torchserve_py.core.serving.serving import Restored
from torchserve_py.fleet.saved_models.fleet_state import FleetState
from torchserve_py.fleet.saved_models.restored_models import restored, shared_handover
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot
from torchserve_py.fleet.saved_models.state_folder import StateFolder
from torchserve_py.plugin_api import PluginUnavailable

EARLIER = SavedModel(name="earlier", version="1", location="earlier.mar")
SHARED = SavedModel(name="shared", version="1", location="shared.mar")


def test_the_fleet_goes_before_the_snapshot_and_that_before_what_is_to_be_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missed = tuple(parse_model_specs("missed.mar"))
    places = {"model_store": tmp_path, "fleet_state": None, "load_models": tuple(parse_model_specs("first.mar"))}
    assert restored(server_settings().model_construct(**places)) is None
    places["model_snapshot"] = Snapshot("", 0, (EARLIER,), missed)
    assert restored(server_settings().model_construct(**places)) == Restored((EARLIER,), missed)
    places |= {"fleet_state": str(tmp_path), "fleet_name": "fleet"}
    assert restored(server_settings().model_construct(**places)) == Restored((EARLIER,), missed)  # it has no state yet
    assert StateFolder(tmp_path / "fleet").add(FleetState(1, (SHARED,)))
    with caplog.at_level(logging.WARNING):
        [model] = (restored(server_settings().model_construct(**places)) or Restored((), ())).models
    assert model.name == "shared"
    assert "The fleet says which models are served (its state 1), and not load_models" in caplog.text


def test_a_state_that_cannot_be_read_is_no_reason_to_serve_something_else(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / f"state-{1:012}.json").write_text("[")
    settings = server_settings().model_construct(model_store=tmp_path, fleet_state=str(tmp_path), fleet_name="fleet")
    with pytest.raises(PluginUnavailable, match="state-000000000001"):
        restored(settings)


@pytest.mark.parametrize(
    ("state", "name", "place"),
    [
        ("fleet", None, "fleet/handover"),
        ("fleet", "shop", "fleet/shop/handover"),
    ],
)
def test_servers_of_a_fleet_leave_each_other_sequences_where_its_state_is(
    tmp_path: Path, state: str, name: str | None, place: str
) -> None:
    settings = server_settings().model_construct(fleet_state=str(tmp_path / state), fleet_name=name)
    storage = shared_handover(settings)
    assert storage is not None
    storage.states.write("m/s", Known("1", 2e9, (), None), [b"7"], lambda: True)
    assert (tmp_path / place / "m" / "s").exists()


def test_a_server_without_a_fleet_shares_no_sequences() -> None:
    assert shared_handover(server_settings().model_construct(fleet_state=None)) is None


def test_what_servers_of_a_fleet_in_redis_share_has_the_name_of_the_fleet(redis_server: RedisServer) -> None:
    settings = server_settings().model_construct(fleet_state=redis_server.url, fleet_name="shop")
    storage = shared_handover(settings)
    assert storage is not None
    assert storage.lists is not None
    storage.lists.look({"m/s": HAS}, {})
    with Redis.from_url(redis_server.url) as redis:
        assert redis.scard("torchserve-py:handover:shop:servers") == 1
