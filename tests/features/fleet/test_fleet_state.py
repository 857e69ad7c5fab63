"""The state of a fleet: what each change makes of it, and what a folder keeps."""

from pathlib import Path

import fakeredis
import pytest

from torchserve_py.features.fleet import state_in_redis
from torchserve_py.features.fleet.fleet_state import NOTHING, FleetState, FleetStateError, StateStore
from torchserve_py.features.fleet.state_folder import StateFolder
from torchserve_py.features.fleet.state_in_redis import StateInRedis
from torchserve_py.settings.schemas.versions import SavedModel


def saved(version: str, name: str = "m", **more: object) -> SavedModel:
    fields = {"min_workers": 1, "max_workers": 1, **more}
    return SavedModel(name=name, version=version, location=f"{name}-{version}.mar").model_copy(update=fields)


def defaults(state: FleetState) -> list[tuple[str, str]]:
    return [key for key, model in state.by_version.items() if model.default]


def test_the_first_version_of_a_name_is_the_default_one_until_another_is_chosen() -> None:
    state = NOTHING.with_model(saved("1"), becomes_default=False)
    state = state.with_model(saved("2", default=True), becomes_default=False)
    assert defaults(state) == [("m", "1")]
    state = state.with_model(saved("2"), becomes_default=True)
    assert defaults(state) == [("m", "2")]
    assert state.number == 3
    # Another server scales the version, and does not know yet that it is not the default one any more.
    state = state.with_model(saved("1", default=True, max_workers=4), becomes_default=False)
    assert defaults(state) == [("m", "2")]
    assert state.by_version["m", "2"].chosen
    assert state.by_version["m", "1"].max_workers == 4


def test_a_chosen_default_stays_chosen_when_it_is_scaled() -> None:
    state = NOTHING.with_model(saved("1"), becomes_default=True).with_model(saved("1"), becomes_default=False)
    assert state.by_version["m", "1"].chosen


def test_if_the_default_version_goes_the_first_one_that_stays_is_it() -> None:
    state = NOTHING.with_model(saved("1", name="other"), becomes_default=False)
    for version in "123":
        state = state.with_model(saved(version), becomes_default=False)
    assert defaults(state.without_model("m", "1")) == [("other", "1"), ("m", "2")]
    assert defaults(state.without_model("m", "3")) == defaults(state)


@pytest.fixture(params=["folder", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateStore:
    if request.param == "folder":
        return StateFolder(tmp_path / "fleet")
    database = fakeredis.FakeRedis()

    def opened(url: str, limit: float) -> object:
        return type("Opened", (), {"client": database, "name": "localhost"})

    monkeypatch.setattr(state_in_redis, "open_client", opened)
    return StateInRedis("redis://localhost")


def test_of_two_states_with_a_number_one_is_kept(store: StateStore) -> None:
    assert store.newest() == NOTHING
    assert store.newest_number() == 0
    first, other = (NOTHING.with_model(saved(version), becomes_default=True) for version in "12")
    assert store.add(first)
    assert not store.add(other)
    assert store.newest() == first
    assert store.add(first.without_model("m", "1"))
    assert store.newest() == FleetState(2, ())


def test_a_folder_keeps_the_newest_states(tmp_path: Path) -> None:
    store, state = StateFolder(tmp_path), NOTHING
    for count in range(50):
        state = state.with_model(saved("1", max_workers=count), becomes_default=False)
        assert store.add(state)
    assert store.newest() == state
    assert len(list(tmp_path.iterdir())) == 20


def test_a_damaged_state_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "state-000000000007.json").write_text('{"models": {"m": []}}')
    with pytest.raises(
        FleetStateError, match=r"state-000000000007\.json is no state of a fleet: .*repair it, or remove"
    ):
        StateFolder(tmp_path).newest()


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FleetStateError, match="cannot be written"):
        StateFolder(tmp_path / "file" / "below").add(FleetState(1, ()))
