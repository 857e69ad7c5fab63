"""Opening archives of every format, folders, and folders without a manifest."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.core.archive.conftest import Pack

from torchserve_py.core.archive.errors import ArchiveError, ArchiveNotFound, InvalidArchive
from torchserve_py.core.archive.model_files import open_model


@pytest.mark.parametrize("archive_format", ["default", "zip-store", "tgz"])
def test_an_archive_is_unpacked_and_removed(archive_format: str, pack_model: Pack, temp_dir: Path) -> None:
    files = open_model(pack_model(archive_format=archive_format), temp_dir)
    assert files.name == "noop"
    assert files.manifest.handler == "my_handler.py"
    assert (files.model_dir / "my_handler.py").is_file()
    assert files.model_dir.parent == temp_dir / "models"
    files.remove()
    assert list((temp_dir / "models").iterdir()) == []
    files.remove()


def test_a_packed_folder_is_used_in_place_and_never_removed(pack_model: Pack, temp_dir: Path) -> None:
    folder = pack_model(archive_format="no-archive")
    files = open_model(folder, temp_dir)
    assert files.model_dir == folder
    assert files.name == "noop"
    files.remove(downloaded=True)
    assert (folder / "my_handler.py").is_file()
    assert list(temp_dir.iterdir()) == []


def test_the_configuration_is_found_through_the_manifest(pack_model: Pack, sources: Path, temp_dir: Path) -> None:
    assert open_model(pack_model(), temp_dir).config_file is None
    archive = pack_model(config_file=str(sources / "model-config.yaml"), force=True)
    config = open_model(archive, temp_dir).config_file
    assert config is not None
    assert config.read_text() == "batchSize: 2\n"


def test_a_plain_folder_is_served_by_what_it_holds(sources: Path, temp_dir: Path) -> None:
    (sources / "model.py").touch()
    (sources / "README.md").touch()
    files = open_model(sources, temp_dir)
    assert files.name == "sources"
    assert files.model_dir == sources
    assert files.manifest.raw == {
        "runtime": "python",
        "model": {
            "modelName": "sources",
            "handler": "my_handler.py",
            "modelFile": "model.py",
            "serializedFile": "weights.pt",
            "requirementsFile": "requirements.txt",
            "configFile": "model-config.yaml",
        },
    }
    assert list(temp_dir.iterdir()) == []


def test_a_plain_folder_with_weights_may_be_given_a_handler(tmp_path: Path, temp_dir: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.pt").touch()
    opened = open_model(tmp_path / "bare", temp_dir, handler="base_handler")
    assert (opened.contract, opened.manifest.handler) == ("torchserve", "base_handler")
    assert opened.manifest.serialized_file == "model.pt"


def test_a_folder_is_named_after_itself_however_it_is_reached(
    sources: Path, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    assert open_model(Path(), temp_dir, url=".").name == "sources"
    assert open_model(Path(), temp_dir).model_dir == sources


def test_handler_py_is_preferred_among_several(sources: Path, temp_dir: Path) -> None:
    (sources / "handler.py").touch()
    (sources / "test_my_handler.py").touch()
    assert open_model(sources, temp_dir).manifest.handler == "handler.py"


def test_several_handlers_are_an_error_that_lists_them(sources: Path, temp_dir: Path) -> None:
    (sources / "other_handler.py").touch()
    with pytest.raises(InvalidArchive) as caught:
        open_model(sources, temp_dir)
    assert str(caught.value) == (
        f"{sources} has no MAR-INF/MANIFEST.json, and several files that could be the handler of the model: "
        "my_handler.py, other_handler.py (keep one of them, or call one handler.py)"
    )


def test_no_handler_is_looked_for_when_the_registration_names_one(sources: Path, temp_dir: Path) -> None:
    (sources / "other_handler.py").touch()
    assert open_model(sources, temp_dir, handler="other_handler:run").manifest.handler == "other_handler:run"


def test_several_weights_are_an_error_unless_one_is_called_model(sources: Path, temp_dir: Path) -> None:
    (sources / "more.pth").touch()
    with pytest.raises(InvalidArchive, match=r"more.pth, weights.pt \(keep one of them, or call one model.pt\)"):
        open_model(sources, temp_dir)
    (sources / "model.pth").touch()
    assert open_model(sources, temp_dir).manifest.serialized_file == "model.pth"


def test_an_archive_without_manifest_is_understood_like_a_folder(tmp_path: Path, temp_dir: Path, sources: Path) -> None:
    with tarfile.open(tmp_path / "resnet-18.tar.gz", "w:gz") as archive:
        archive.add(sources, arcname=".")
    files = open_model(tmp_path / "resnet-18.tar.gz", temp_dir)
    assert files.name == "resnet_18_tar_gz"
    assert files.manifest.handler == "my_handler.py"
    assert files.manifest.model_version == "1.0"


def test_a_manifest_without_a_name_gets_the_archives(tmp_path: Path, temp_dir: Path) -> None:
    with zipfile.ZipFile(tmp_path / "resnet-18.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"handler": "h"}}')
    assert open_model(tmp_path / "resnet-18.mar", temp_dir).name == "resnet_18"


@pytest.mark.parametrize("missing", [(), ("createdOn",), ("createdOn", "archiverVersion")])
def test_what_a_manifest_does_not_say_of_its_making_is_a_warning(
    missing: tuple[str, ...], pack_model: Pack, temp_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = pack_model(archive_format="no-archive")
    file = folder / "MAR-INF" / "MANIFEST.json"
    file.write_text(json.dumps({key: each for key, each in json.loads(file.read_text()).items() if key not in missing}))
    open_model(folder, temp_dir, url="noop")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"noop: {key} is missing in MAR-INF/MANIFEST.json; was it made by torch-model-archiver?" for key in missing
    ]


def test_a_folder_with_nothing_but_a_folder_is_descended_into(
    tmp_path: Path, model_store: Path, pack_model: Pack, temp_dir: Path
) -> None:
    folder = pack_model(archive_format="no-archive")
    assert open_model(model_store, temp_dir).model_dir == folder
    with tarfile.open(tmp_path / "m.tgz", "w:gz") as archive:
        archive.add(folder, arcname="./noop")
    files = open_model(tmp_path / "m.tgz", temp_dir)
    assert files.manifest.model_name == "noop"
    files.remove()
    assert list((temp_dir / "models").iterdir()) == []


def test_an_archive_with_nothing_but_a_manifest_is_not_descended_into(tmp_path: Path, temp_dir: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": "bare"}}))
    assert open_model(tmp_path / "m.mar", temp_dir).name == "bare"


@pytest.mark.parametrize("manifest", ["", "{", '{"model": null}', '{"runtime": "x"}'])
def test_nothing_is_left_behind_when_the_manifest_is_bad(manifest: str, tmp_path: Path, temp_dir: Path) -> None:
    with tarfile.open(tmp_path / "m.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("top/MAR-INF/MANIFEST.json")
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest.encode()))
    with pytest.raises(InvalidArchive):
        open_model(tmp_path / "m.tgz", temp_dir)
    assert list((temp_dir / "models").iterdir()) == []


def test_a_folder_is_left_alone_when_its_manifest_is_bad(pack_model: Pack, temp_dir: Path) -> None:
    folder = pack_model(archive_format="no-archive")
    (folder / "MAR-INF" / "MANIFEST.json").write_text("{")
    with pytest.raises(InvalidArchive):
        open_model(folder, temp_dir)
    assert (folder / "my_handler.py").is_file()


def test_what_is_not_there_is_not_found(tmp_path: Path, temp_dir: Path) -> None:
    with pytest.raises(ArchiveNotFound, match=r"^Model not found at: gone\.mar$"):
        open_model(tmp_path / "gone.mar", temp_dir, url="gone.mar")


def test_a_temp_dir_that_cannot_be_written_is_an_archive_error(pack_model: Pack, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match=r"^Failed to save model: noop\.mar: "):
        open_model(pack_model(), tmp_path / "file", url="noop.mar")
