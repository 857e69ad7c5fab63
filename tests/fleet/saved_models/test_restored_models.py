"""What a server begins with: what its fleet serves, else its snapshot, else `load_models`."""

import logging
from pathlib import Path

import pytest

from torchserve_py.base.settings.model_spec import parse_model_specs
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.server_settings import server_settings
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
        (None, None, None),
        ("/mnt/fleet", None, "/mnt/fleet/handover"),
        ("/mnt/fleet", "shop", "/mnt/fleet/shop/handover"),
        ("redis://redis:6379/0", "shop", None),
    ],
)
def test_servers_that_share_a_folder_leave_each_other_sequences_there(
    state: str | None, name: str | None, place: str | None
) -> None:
    settings = server_settings().model_construct(fleet_state=state, fleet_name=name)
    assert shared_handover(settings) == (place and Path(place))
