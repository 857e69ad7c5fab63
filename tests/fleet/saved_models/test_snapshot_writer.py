"""When snapshots are written, what they hold, and that a later server makes the same of them."""

import asyncio
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.base.settings.snapshot_files import oldest_first
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings
from torchserve_py.fleet.saved_models.snapshot_writer import SnapshotWriter

WRITER = "torchserve_py.fleet.saved_models.snapshot_writer"


class Registry:
    def __init__(self) -> None:
        self.models: list[SavedModel] = []
        self.not_loaded: list[ModelSpec] = []
        self.on_change: list[Callable[[], None]] = []
        self.workflows: tuple[str, ...] = ()

    def saved_models(self) -> Sequence[SavedModel]:
        return list(self.models)


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path


def make(home: Path, registry: Registry, **settings: Any) -> SnapshotWriter:
    return SnapshotWriter(
        server_settings()(
            model_store=home / "store", log_location=home / "logs", metrics_location=home / "logs", **settings
        ),
        registry,
        lambda: registry.workflows,
    )


def written(home: Path) -> list[Path]:
    folder = home / "logs" / "config"
    return oldest_first(folder) if folder.exists() else []


def occasions(home: Path) -> list[str]:
    return [path.stem.split("-")[1] for path in written(home)]


async def test_a_snapshot_is_written_at_the_start_after_changes_and_at_the_end(home: Path, registry: Registry) -> None:
    writer = make(home, registry)
    writer.changed()
    await writer.started()
    assert occasions(home) == ["startup"]
    registry.models = [SavedModel(name="m", version="1.0", location="m.mar")]
    for _ in range(5):
        writer.changed()
    await writer.close()
    assert occasions(home)[0] == "startup"
    assert occasions(home)[-1] == "shutdown"
    assert 2 <= len(written(home)) <= 4
    writer.changed()
    await writer.close()
    assert occasions(home)[-1] == "shutdown"


async def test_workflows_are_registered_again(home: Path, registry: Registry) -> None:
    registry.workflows = ("look.war", "other=look.war")
    await make(home, registry).started()
    (snapshot,) = written(home)
    assert "load_workflows=look.war,other=look.war\n" in snapshot.read_text()


async def test_a_disk_that_hangs_does_not_keep_the_server_from_ending(
    home: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make(home, registry)
    await writer.started()
    back = threading.Event()
    monkeypatch.setattr(f"{WRITER}._LAST_LIMIT", 0.05)
    monkeypatch.setattr("torchserve_py.core.archive.cancellation._CLEAN_UP_LIMIT", 0.05)
    monkeypatch.setattr(f"{WRITER}.write_atomically", lambda path, text: back.wait())
    writer.changed()
    await writer.close()
    back.set()
    assert "not written within 0.05 seconds" in caplog.text


async def test_a_server_that_did_not_start_writes_none(home: Path, registry: Registry) -> None:
    await make(home, registry).close()
    assert written(home) == []


async def test_none_is_written_without_snapshots(home: Path, registry: Registry) -> None:
    writer = make(home, registry, no_config_snapshots=True)
    await writer.started()
    writer.changed()
    await writer.close()
    assert written(home) == []


async def test_the_newest_are_kept_and_nothing_else_is_touched(home: Path, registry: Registry) -> None:
    (home / "logs" / "config").mkdir(parents=True)
    users = home / "logs" / "config" / "notes.cfg"
    users.write_text("mine")
    for number in range(5):
        old = home / "logs" / "config" / f"2020010100000000{number}-snapshot.cfg"
        old.touch()
        os.utime(old, (number, number))
    writer = make(home, registry, snapshots_kept=3)
    await writer.started()
    names = [path.name for path in written(home)]
    assert names[:2] == ["20200101000000003-snapshot.cfg", "20200101000000004-snapshot.cfg"]
    assert len(names) == 3
    assert users.read_text() == "mine"


async def test_the_file_is_named_and_protected_as_it_should_be(home: Path, registry: Registry) -> None:
    await make(home, registry, keystore_pass="secret").started()
    (path,) = written(home)
    assert re.fullmatch(r"\d{17}-startup\.cfg", path.name)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


async def test_a_folder_that_cannot_be_written_is_a_warning(
    home: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "logs").write_text("a file")
    writer = make(home, registry)
    await writer.started()
    assert "The snapshot of the configuration could not be written" in caplog.text
    await writer.close()


async def test_what_could_not_be_written_is_written_again_until_it_is(
    home: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WRITER}._RETRY", 0.01)
    monkeypatch.setattr(f"{WRITER}._PAUSE", 0.01)
    monkeypatch.setattr(f"{WRITER}._PAUSES_PER_WRITE", 0)
    writer = make(home, registry)
    await writer.started()
    (home / "logs" / "config").rename(home / "aside")
    (home / "logs" / "config").write_text("the disk is full, so to say")
    registry.models = [SavedModel(name="m", version="1.0", location="m.mar")]
    writer.changed()
    async with asyncio.timeout(60):
        while not writer.is_behind:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        (home / "logs" / "config").unlink()
        while writer.is_behind:
            await asyncio.sleep(0.01)
    assert "m.mar" in written(home)[-1].read_text()
    await writer.close()


async def test_every_setting_comes_back(home: Path, registry: Registry) -> None:
    (home / "metrics.yaml").write_text("dimensions: []\n")
    text = "\n".join(
        [
            "inference_address=unix:/tmp/x y.sock",
            "management_address=https://0.0.0.0:1",
            "load_models=a=x.mar,https://h/y.mar?a=1,2",
            'models={"m": {"1.0": {"batchSize": 4, "ü": "\\\\\\\\ \\\\n"}}}',
            "allowed_urls=file://.*,https://h/\\\\d+",
            "blacklist_env_vars=A\\\\w*",
            "token_expiration_min=1234567.891",
            "keystore_pass= \\ with blanks \\\\ ",
            "cors_allowed_origin=*",
            "enable_metrics_api=FALSE",
            "service_envelope=json",
            "job_queue_size=7",
            "metrics_config=metrics.yaml",
        ]
    )
    (home / "config.properties").write_text(text)
    before = Resolution(parse_flags(["--model-store", "store", "--ncs", "--dt", "--enable-model-api"]), {}, home)
    assert not before.errors
    settings = before.settings()
    writer = SnapshotWriter(server_settings()(**{**vars(settings), "no_config_snapshots": False}), registry, lambda: ())
    await writer.started()
    after = Resolution(parse_flags([]), {}, home)
    assert not after.errors
    changes = {"no_config_snapshots": True, "model_snapshot": None}
    found = server_settings()(**{**vars(after.settings()), **changes})
    assert (type(found), vars(found)) == (type(settings), vars(settings))
    assert settings.token_expiration_min == 1234567.891
    assert settings.inference_address == Address("unix", path="/tmp/x y.sock")


async def test_the_models_come_back_wherever_they_are(home: Path, registry: Registry) -> None:
    (home / "elsewhere").mkdir()
    (home / "elsewhere" / "search.py").touch()
    (home / "store" / "folder").mkdir()
    (home / "store" / "deep").mkdir()
    for name in ("x.mar", "y.mar", "deep/z.mar"):
        (home / "store" / name).touch()
    locations = {
        "x.mar": "x.mar",
        f"{home}/store/x.mar": "x.mar",
        "deep/z.mar": "deep/z.mar",
        "folder": "folder",
        f"{home}/elsewhere": f"{home}/elsewhere",
        f"{home}/elsewhere/search.py:embed": f"{home}/elsewhere/search.py:embed",
        f"https://h/a/y.mar?token=1#sha256={'0' * 64}": "y.mar",
    }
    registry.models = [
        SavedModel(name=f"m{number}", version="1.0", location=location, min_workers=0, max_workers=number)
        for number, location in enumerate(locations)
    ]
    registry.not_loaded = [ModelSpec("n", "gone.mar")]
    await make(home, registry).started()
    resolution = Resolution(parse_flags([]), {}, home)
    assert not resolution.errors
    snapshot = resolution.settings().of(SavedModelsSettings).model_snapshot
    assert snapshot is not None
    assert [model.location for model in snapshot.models] == list(locations.values())
    assert [model.max_workers for model in snapshot.models] == list(range(7))
    assert snapshot.not_loaded == (ModelSpec("n", "gone.mar"),)
    assert snapshot.name == written(home)[0].name
    assert snapshot.created > 1_700_000_000_000


async def test_changes_are_written_while_the_server_runs(home: Path, registry: Registry) -> None:
    writer = make(home, registry)
    await writer.started()
    writer.changed()
    async with asyncio.timeout(60):
        while occasions(home) != ["startup", "snapshot"]:
            await asyncio.sleep(0.01)
    await writer.close()


async def test_many_changes_share_a_snapshot_which_has_the_last_of_them(
    home: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WRITER}._PAUSE", 0.3)
    monkeypatch.setattr(f"{WRITER}._PAUSES_PER_WRITE", 0)
    writer = make(home, registry)
    await writer.started()
    for number in range(20):
        registry.models.append(SavedModel(name=f"m{number}", version="1.0", location="m.mar"))
        writer.changed()
        await asyncio.sleep(0.005)
    async with asyncio.timeout(60):
        while '"m19"' not in written(home)[-1].read_text():
            await asyncio.sleep(0.01)
    assert len(written(home)) <= 4
    await writer.close()
