"""Making archives: every option of the archiver, and that what goes in comes out."""

import json
import logging
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from tests.core.archive.conftest import Pack

from torchserve_py.archives.archiver import pack as pack_module
from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS
from torchserve_py.core.archive.manifest import describe
from torchserve_py.core.archive.model_files import ModelFiles, open_model

ALL_FORMATS = ["default", "zip-store", "tgz", "no-archive"]
all_formats = pytest.mark.parametrize("archive_format", ALL_FORMATS)


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A folder with files, folders, and what must not be packed."""
    folder = tmp_path / "extra"
    for path in ("labels.json", "sub/deep/vocab.txt", "__pycache__/a.pyc", "sub/.git/config", "__MACOSX/x", ".keep"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    (folder / "empty").mkdir()
    return folder


def packed_names(archive: Path, temp_dir: Path) -> list[str]:
    """The files of an archive, without the manifest and the handler."""
    files = open_model(archive, temp_dir)
    names = {str(path.relative_to(files.model_dir)) for path in files.model_dir.rglob("*") if path.is_file()}
    return sorted(names - {"MAR-INF/MANIFEST.json", "my_handler.py"})


@all_formats
def test_everything_that_goes_in_comes_out(
    archive_format: str, pack_model: Pack, sources: Path, extra: Path, temp_dir: Path
) -> None:
    archive = pack_model(
        archive_format=archive_format,
        version="2.0",
        runtime="python3",
        serialized_file=str(sources / "weights.pt"),
        model_file=str(sources / "my_handler.py"),
        requirements_file=str(sources / "requirements.txt"),
        config_file=str(sources / "model-config.yaml"),
        extra_files=str(extra),
    )
    files = open_model(archive, temp_dir)
    manifest = dict(files.manifest.raw)
    assert manifest.pop("createdOn")
    assert manifest.pop("archiverVersion")
    assert manifest == {
        "runtime": "python3",
        "model": {
            "modelName": "noop",
            "serializedFile": "weights.pt",
            "handler": "my_handler.py",
            "modelFile": "my_handler.py",
            "modelVersion": "2.0",
            "requirementsFile": "requirements.txt",
            "configFile": "model-config.yaml",
        },
    }
    for file in sources.iterdir():
        assert (files.model_dir / file.name).read_bytes() == file.read_bytes()
    assert (files.model_dir / "sub/deep/vocab.txt").read_text() == "sub/deep/vocab.txt"


@pytest.mark.parametrize(
    ("archive_format", "name"),
    [("default", "noop.mar"), ("zip-store", "noop.mar"), ("tgz", "noop.tar.gz"), ("no-archive", "noop")],
)
def test_an_archive_is_named_after_its_model_and_format(
    archive_format: str, name: str, pack_model: Pack, model_store: Path
) -> None:
    assert pack_model(archive_format=archive_format) == model_store / name
    assert [path.name for path in model_store.iterdir()] == [name]


def test_the_formats_are_those_that_torchserve_reads(pack_model: Pack) -> None:
    with zipfile.ZipFile(pack_model()) as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_DEFLATED}
        assert sorted(archive.namelist()) == ["MAR-INF/MANIFEST.json", "my_handler.py"]
    with zipfile.ZipFile(pack_model(archive_format="zip-store", force=True)) as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    with tarfile.open(pack_model(archive_format="tgz"), "r:gz") as archive:
        assert sorted(archive.getnames()) == ["noop/MAR-INF/MANIFEST.json", "noop/my_handler.py"]
        assert all(member.isreg() and member.uname == "" for member in archive)


@pytest.mark.parametrize(
    ("handler", "entry"),
    [
        ("my_handler.py", "my_handler.py"),
        ("my_handler", "my_handler"),
        ("my_handler:handle", "my_handler:handle"),
        ("my_handler.py:handle", "my_handler.py:handle"),
    ],
)
def test_a_handler_file_is_packed_and_named_so_that_it_is_found(
    handler: str, entry: str, pack_model: Pack, sources: Path, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_model(pack_model(handler=str(sources / handler)), temp_dir)
    assert files.manifest.handler == entry
    assert (files.model_dir / "my_handler.py").is_file()
    monkeypatch.chdir(sources)
    assert open_model(pack_model(handler=handler, force=True), temp_dir).manifest.handler == entry


@pytest.mark.parametrize("handler", list(BUILT_IN_HANDLERS))
def test_a_built_in_handler_is_named_and_nothing_is_packed(handler: str, pack_model: Pack, temp_dir: Path) -> None:
    archive = pack_model(handler=handler)
    assert open_model(archive, temp_dir).manifest.handler == handler
    assert packed_names(archive, temp_dir) == []


@pytest.mark.parametrize("handler", ["gone", "gone.py", "gone:handle", "dir/gone", "my_handler.py/handle"])
def test_a_handler_that_is_not_there_is_an_error(handler: str, pack_model: Pack, model_store: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^Handler file does not exist: \S+\.py$"):
        pack_model(handler=handler)
    assert list(model_store.iterdir()) == []


def test_a_misspelt_built_in_handler_is_recognised(pack_model: Pack) -> None:
    with pytest.raises(FileNotFoundError, match=r"did you mean the built-in image_classifier\?"):
        pack_model(handler="image_clasifier")


@pytest.mark.parametrize("handler", ["", ":handle", "my_handler:", "/"])
def test_what_is_no_handler_is_an_error(handler: str, pack_model: Pack) -> None:
    with pytest.raises(PackError, match="must be a built-in name, a Python file, or <module>:<function>"):
        pack_model(handler=handler)


def test_the_language_of_the_handler_decides_its_file(pack_model: Pack, sources: Path, temp_dir: Path) -> None:
    (sources / "native.so").touch()
    (sources / "native.dylib").touch()
    archive = pack_model(handler=str(sources / "native:Handler"), runtime="LSP")
    manifest = open_model(archive, temp_dir).manifest
    assert (manifest.runtime, manifest.handler) == ("LSP", "native:Handler")
    assert open_model(pack_model(handler="BaseHandler", runtime="LSP", force=True), temp_dir).manifest.handler
    with pytest.raises(PackError, match='Runtime "cobol" must be one of python, python3, LSP'):
        pack_model(runtime="cobol")


def test_extra_files_are_files_folders_and_wildcards(pack_model: Pack, extra: Path, temp_dir: Path) -> None:
    spec = f"{extra}/labels.json, {extra}/sub ,{extra}/lab*.json,"
    assert packed_names(pack_model(extra_files=spec), temp_dir) == ["deep/vocab.txt", "labels.json"]


def test_hidden_and_unwanted_folders_are_not_packed(pack_model: Pack, extra: Path, temp_dir: Path) -> None:
    names = packed_names(pack_model(extra_files=str(extra)), temp_dir)
    assert names == [".keep", "labels.json", "sub/deep/vocab.txt"]


def test_a_hidden_folder_is_packed_when_it_is_named(pack_model: Pack, extra: Path, temp_dir: Path) -> None:
    assert packed_names(pack_model(extra_files=f"{extra}/sub/.git"), temp_dir) == ["config"]


def test_a_wildcard_that_matches_nothing_is_a_warning(
    pack_model: Pack, temp_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert packed_names(pack_model(extra_files="gone*.txt"), temp_dir) == []
    assert caplog.messages == ["Given wildcard pattern did not match any file: gone*.txt"]


@pytest.mark.parametrize("option", ["serialized_file", "model_file", "extra_files", "requirements_file", "config_file"])
def test_a_file_that_is_not_there_is_an_error(option: str, pack_model: Pack, model_store: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^File does not exist: gone\.txt$"):
        pack_model(**{option: "gone.txt"})
    assert list(model_store.iterdir()) == []


def test_two_files_of_one_name_are_a_warning_and_the_second_is_taken(
    pack_model: Pack, extra: Path, temp_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (extra / "my_handler.py").write_text("second")
    files = open_model(pack_model(extra_files=f"{extra}/my_handler.py"), temp_dir)
    assert (files.model_dir / "my_handler.py").read_text() == "second"
    assert "have the same path my_handler.py in the archive: the second is taken" in caplog.text


def test_one_file_named_twice_is_no_warning(
    pack_model: Pack, sources: Path, temp_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack_model(extra_files=str(sources))
    assert caplog.messages == []


def test_links_are_followed_but_not_in_circles(pack_model: Pack, extra: Path, sources: Path, temp_dir: Path) -> None:
    (extra / "linked.pt").symlink_to(sources / "weights.pt")
    (extra / "circle").symlink_to(extra)
    os.link(sources / "weights.pt", extra / "hard.pt")
    archive = pack_model(extra_files=str(extra), archive_format="tgz")
    assert packed_names(archive, temp_dir) == [".keep", "hard.pt", "labels.json", "linked.pt", "sub/deep/vocab.txt"]


def test_a_link_to_nowhere_is_an_error(pack_model: Pack, extra: Path) -> None:
    (extra / "broken").symlink_to("gone")
    with pytest.raises(ValueError, match=r"^Invalid extra file given \S+/broken$"):
        pack_model(extra_files=str(extra))


@all_formats
def test_an_archive_never_holds_itself(
    archive_format: str, pack_model: Pack, sources: Path, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    for _ in range(2):
        archive = pack_model(extra_files=".", export_path=".", archive_format=archive_format, force=True)
    assert packed_names(archive, temp_dir) == ["model-config.yaml", "requirements.txt", "weights.pt"]


def test_a_packed_folder_can_be_packed_again_in_place(pack_model: Pack, sources: Path, temp_dir: Path) -> None:
    folder = pack_model(archive_format="no-archive")
    again = pack_model(
        archive_format="no-archive",
        handler=str(folder / "my_handler.py"),
        extra_files=str(folder),
        version="2.0",
        force=True,
    )
    assert (again / "my_handler.py").read_bytes() == (sources / "my_handler.py").read_bytes()
    assert open_model(again, temp_dir).manifest.model_version == "2.0"


def test_a_file_from_deep_in_the_packed_folder_is_found_when_it_is_packed_again(
    pack_model: Pack, sources: Path
) -> None:
    folder = pack_model(archive_format="no-archive")
    (folder / "checkpoints").mkdir()
    (sources / "weights.pt").rename(folder / "checkpoints" / "best.pt")
    again = pack_model(archive_format="no-archive", serialized_file=str(folder / "checkpoints" / "best.pt"), force=True)
    assert (again / "best.pt").read_bytes() == (folder / "checkpoints" / "best.pt").read_bytes()


@all_formats
def test_an_existing_archive_is_kept_unless_forced(
    archive_format: str, pack_model: Pack, temp_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = pack_model(archive_format=archive_format)
    with pytest.raises(PackError) as caught:
        pack_model(archive_format=archive_format, version="2.0")
    assert str(caught.value) == (
        f"{archive} already exists.\n"
        "Please specify --force/-f option to overwrite the model archive output file.\n"
        "See -h/--help for more details."
    )
    assert open_model(archive, temp_dir).manifest.model_version == "1.0"
    pack_model(archive_format=archive_format, version="2.0", force=True)
    assert caplog.messages == [f"Overwriting {archive} ..."]
    assert open_model(archive, temp_dir).manifest.model_version == "2.0"


@pytest.mark.parametrize("archive_format", ["default", "tgz"])
def test_a_failure_leaves_the_old_archive_and_nothing_else(
    archive_format: str, pack_model: Pack, model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack_model(archive_format=archive_format)
    before = archive.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(pack_module._ReportingFile, "read", full_disk)
    with pytest.raises(OSError, match="No space left"):
        pack_model(archive_format=archive_format, force=True)
    assert archive.read_bytes() == before
    assert list(model_store.iterdir()) == [archive]


@pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "a/b", "ä", "a\n", "a:b"])
def test_a_bad_model_name_is_refused_with_torchserves_message(name: str, pack_model: Pack) -> None:
    with pytest.raises(PackError) as caught:
        pack_model(model_name=name)
    assert str(caught.value) == (
        "Model name contains special characters.\n"
        "The allowed regular expression filter for model name is: ^[A-Za-z0-9][A-Za-z0-9_\\-.]*$"
    )


def test_the_export_path_is_made_when_it_is_missing(pack_model: Pack, tmp_path: Path) -> None:
    assert pack_model(export_path=str(tmp_path / "new" / "store")) == tmp_path / "new" / "store" / "noop.mar"


def test_an_export_path_that_is_a_file_is_an_error(pack_model: Pack, sources: Path) -> None:
    with pytest.raises(PackError, match=r"^Given export-path \S+ is not a directory\."):
        pack_model(export_path=str(sources / "weights.pt"))


def test_a_file_from_before_1980_is_packed(pack_model: Pack, sources: Path, temp_dir: Path) -> None:
    os.utime(sources / "my_handler.py", (0, 0))
    assert open_model(pack_model(), temp_dir).manifest.handler == "my_handler.py"


def test_a_manifest_among_the_extra_files_is_not_taken(pack_model: Pack, extra: Path, temp_dir: Path) -> None:
    (extra / "MAR-INF").mkdir()
    (extra / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "other"}}))
    files: ModelFiles = open_model(pack_model(extra_files=str(extra)), temp_dir)
    assert files.name == "noop"


@pytest.mark.parametrize("archive_format", ["default", "tgz", "no-archive"])
def test_progress_is_told_for_every_byte(
    archive_format: str, pack_model: Pack, sources: Path, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    totals: list[int | None] = []

    @contextmanager
    def bar(total: int | None, label: str) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield told.append

    monkeypatch.setattr(pack_module, "progress_bar", bar)
    archive = pack_model(archive_format=archive_format, serialized_file=str(sources / "weights.pt"))
    opened = open_model(archive, temp_dir)
    expected = sum((sources / name).stat().st_size for name in ("weights.pt", "my_handler.py"))
    expected += (opened.model_dir / "MAR-INF" / "MANIFEST.json").stat().st_size
    assert totals == [expected]
    assert sum(told) == expected


def test_warnings_go_to_the_log(pack_model: Pack, caplog: pytest.LogCaptureFixture) -> None:
    pack_model(extra_files="gone*")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_manifest_says_when_its_archive_was_made() -> None:
    manifest = pack_module.stamped(describe(model_name="noop"), datetime(2024, 5, 30, 21, 41, 47))
    assert manifest.raw["createdOn"] == "30/05/2024 21:41:47"
    assert list(manifest.raw) == ["createdOn", "runtime", "model", "archiverVersion"]
