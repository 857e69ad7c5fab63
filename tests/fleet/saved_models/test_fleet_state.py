"""The state of a fleet: what each change makes of it, and what a folder keeps."""

import os
from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.serving.errors import ModelVersionNotFound
from torchserve_py.endpoints.management.edits import DefaultChosen, Registered, Scaled, Unregistered, Weighted
from torchserve_py.fleet.saved_models import fleet_state, state_folder, state_in_redis
from torchserve_py.fleet.saved_models.fleet_state import NOTHING, FleetState, FleetStateError, StateStore
from torchserve_py.fleet.saved_models.state_folder import StateFolder
from torchserve_py.fleet.saved_models.state_in_redis import StateInRedis


def saved(version: str, name: str = "m", **more: object) -> SavedModel:
    fields = {"min_workers": 1, "max_workers": 1, **more}
    return SavedModel(name=name, version=version, location=f"{name}-{version}.mar").model_copy(update=fields)


def defaults(state: FleetState) -> list[tuple[str, str]]:
    return [key for key, model in state.by_version.items() if model.default]


def test_the_first_version_of_a_name_is_the_default_one_until_another_is_chosen() -> None:
    state = NOTHING.with_edit(Registered(saved("1"))).with_edit(Registered(saved("2")))
    assert defaults(state) == [("m", "1")]
    state = state.with_edit(DefaultChosen("m", "2"))
    assert defaults(state) == [("m", "2")]
    assert state.number == 3
    # Another server scales the version, and does not know yet that it is not the default one any more.
    state = state.with_edit(Scaled("m", "1", 1, 4))
    assert defaults(state) == [("m", "2")]
    assert state.by_version["m", "2"].chosen
    assert state.by_version["m", "1"].max_workers == 4


def test_a_version_that_is_registered_anew_keeps_what_others_have_made_of_it() -> None:
    edits = [Registered(saved("1")), Registered(saved("2")), DefaultChosen("m", "1"), Scaled("m", "1", 3, 3)]
    state = NOTHING.with_edits([*edits, Weighted("m", {"1": 90, "2": 10}), Registered(saved("1", batch_size=8))])
    first = state.by_version["m", "1"]
    assert (first.batch_size, first.min_workers, first.weight, first.default, first.chosen) == (8, 3, 90, True, True)
    assert state.number == 1


def test_weights_replace_others_only_while_these_are_what_they_were() -> None:
    state = NOTHING.with_edits([Registered(saved("1")), Registered(saved("2")), Weighted("m", {"1": 95, "2": 5})])
    assert state.with_edit(Weighted("m", {}, instead_of={"1": 95, "2": 5})).weights("m") == {}
    assert state.with_edit(Weighted("m", {}, instead_of={"1": 50, "2": 50})) is state


@pytest.mark.parametrize(("gone", "left"), [(("2",), {"1": 60, "3": 40}), (("2", "3"), {}), (("4",), None)])
def test_the_versions_that_stay_share_the_weights_of_those_that_go(
    gone: tuple[str, ...], left: dict[str, int] | None
) -> None:
    weights = {"1": 30, "2": 50, "3": 20}
    state = NOTHING.with_edits([*(Registered(saved(version)) for version in "123"), Weighted("m", weights)])
    assert state.with_edit(Unregistered("m", gone)).weights("m") == (weights if left is None else left)


def test_what_changes_nothing_makes_no_state() -> None:
    state = NOTHING.with_edits([Registered(saved("1")), DefaultChosen("m", "1")])
    for edit in (Scaled("m", "1", 1, 1), DefaultChosen("m", "1"), Weighted("m", {}), Unregistered("m", ("2",))):
        assert state.with_edit(edit) is state


def test_what_is_gone_cannot_be_changed() -> None:
    for edit in (Scaled("m", "1", 1, 1), DefaultChosen("m", "1"), Weighted("m", {"1": 1})):
        with pytest.raises(ModelVersionNotFound):
            NOTHING.with_edit(edit)


def test_if_the_default_version_goes_the_first_one_that_stays_is_it() -> None:
    state = NOTHING.with_edit(Registered(saved("1", name="other")))
    for version in "123":
        state = state.with_edit(Registered(saved(version)))
    assert defaults(state.with_edit(Unregistered("m", ("1",)))) == [("other", "1"), ("m", "2")]
    assert defaults(state.with_edit(Unregistered("m", ("3",)))) == defaults(state)


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
    first, other = (NOTHING.with_edits([Registered(saved(version)), DefaultChosen("m", version)]) for version in "12")
    assert store.add(first)
    assert not store.add(other)
    assert store.newest() == first
    assert store.add(first.with_edit(Unregistered("m", ("1",))))
    assert store.newest() == FleetState(2, ())


def test_a_folder_keeps_the_newest_states(tmp_path: Path) -> None:
    store, state = StateFolder(tmp_path), NOTHING
    for count in range(50):
        state = state.with_edit(Registered(saved("1", batch_size=count + 1)))
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


def fleet_folder(tmp_path: Path) -> tuple[StateFolder, Path]:
    folder = StateFolder(tmp_path)
    assert folder.add(NOTHING.with_edits([Registered(saved("1")), DefaultChosen("m", "1")]))
    return folder, tmp_path / "state-000000000002.json"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.symlink_to("nowhere"), "it is a symbolic link, not a regular file"),
        (os.mkfifo, "it is a FIFO, not a regular file"),
        (lambda path: path.mkdir(), "it is a folder, not a regular file"),
        (lambda path: (path.touch(), os.truncate(path, 600 << 20)), "the file is larger than"),
        (lambda path: path.write_bytes(b'{"models": "\xff"}'), "the text is not in UTF-8: the byte 0xff in line 1"),
        (lambda path: path.write_bytes(b"\xef\xbb\xbf{}"), ""),
    ],
    ids=["link", "FIFO", "folder", "600 MB", "encoding", "byte order mark"],
)
def test_a_file_that_others_have_put_there_is_named_and_keeps_nobody_waiting(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    folder, newest = fleet_folder(tmp_path)
    make(newest)
    assert folder.newest_number() == 2
    if problem:
        with pytest.raises(FleetStateError, match=f"cannot be read from {newest}: {problem}"):
            folder.newest()
        assert not folder.add(FleetState(2, ()))
    else:
        assert folder.newest() == FleetState(2, ())


def test_a_folder_with_far_too_many_names_is_not_read_to_its_end(tmp_path: Path) -> None:
    folder, _ = fleet_folder(tmp_path)
    for number in range(10_000):
        (tmp_path / f"other-{number}").touch()
    with pytest.raises(FleetStateError, match="more than 10000 files, and is for the states of a fleet only"):
        folder.newest()
    with pytest.raises(FleetStateError, match="remove the others"):
        folder.newest_number()


def test_a_state_that_is_gone_each_time_is_not_looked_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = fleet_folder(tmp_path)
    monkeypatch.setattr(folder, "newest_number", lambda: 7)
    with pytest.raises(FleetStateError, match="its newest file is gone each time"):
        folder.newest()


def test_a_state_that_no_server_would_read_is_not_written(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = NOTHING.with_edits([Registered(saved("1")), DefaultChosen("m", "1")])
    assert store.add(first)
    for module in (fleet_state, state_folder, state_in_redis):
        monkeypatch.setattr(module, "MOST_BYTES", 100)
    with pytest.raises(FleetStateError, match="bytes, at most 100 are read"):
        store.add(first.with_edits([Registered(saved("2")), DefaultChosen("m", "2")]))
    with pytest.raises(FleetStateError, match="100"):
        store.newest()


def test_a_state_counts_although_an_old_one_cannot_be_removed(tmp_path: Path) -> None:
    folder, _ = fleet_folder(tmp_path)
    (tmp_path / "state-000000000000.json").mkdir()
    for number in range(2, 30):
        assert folder.add(FleetState(number, ()))
    assert folder.newest_number() == 29
