"""Finding a model that is named by a path."""

from pathlib import Path

import pytest

from torchserve_py.core.archive.errors import ArchiveNotFound
from torchserve_py.core.archive.locate import locate


@pytest.fixture
def working_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_file_or_folder_of_the_store(model_store: Path, working_dir: Path) -> None:
    (model_store / "x.mar").touch()
    (model_store / "dir").mkdir()
    (model_store / "sub").mkdir()
    (model_store / "sub" / "y.mar").touch()
    assert locate("x.mar", model_store) == model_store / "x.mar"
    assert locate("dir", model_store) == model_store / "dir"
    assert locate("sub/y.mar", model_store) == model_store / "sub" / "y.mar"
    assert locate(str(model_store / "x.mar"), model_store) == model_store / "x.mar"


def test_a_folder_by_its_absolute_path_or_from_the_working_directory(model_store: Path, working_dir: Path) -> None:
    (working_dir / "mine").mkdir()
    assert locate("mine", model_store) == Path("mine")
    assert locate(str(working_dir / "mine"), model_store) == working_dir / "mine"
    assert locate(".", model_store) == Path()


def test_the_store_comes_before_the_working_directory(model_store: Path, working_dir: Path) -> None:
    (working_dir / "dir").mkdir()
    (model_store / "dir").mkdir()
    assert locate("dir", model_store) == model_store / "dir"
    assert locate("./dir", model_store) == Path("dir")


def test_a_path_that_leads_nowhere_is_looked_for_by_its_last_component(model_store: Path, working_dir: Path) -> None:
    (model_store / "x.mar").touch()
    assert locate("/gone/x.mar", model_store) == model_store / "x.mar"


def test_an_archive_outside_the_store_is_refused(model_store: Path, working_dir: Path) -> None:
    (working_dir / "x.mar").touch()
    (model_store / "x.mar").touch()
    with pytest.raises(ArchiveNotFound, match="archive files are taken from the model store"):
        locate(str(working_dir / "x.mar"), model_store)


@pytest.mark.parametrize("location", ["gone.mar", "/gone/x.mar", "gone/", "a\0b", "a" * 5000])
def test_what_is_not_there_is_not_found(location: str, model_store: Path, working_dir: Path) -> None:
    with pytest.raises(ArchiveNotFound, match=r"^Model not found at: ") as caught:
        locate(location, model_store)
    assert (caught.value.status, caught.value.error_type) == (404, "ModelNotFoundException")


def test_it_is_told_where_archives_and_folders_are_looked_for(model_store: Path, working_dir: Path) -> None:
    with pytest.raises(ArchiveNotFound) as caught:
        locate("./gone", model_store)
    places = f"archive files are taken from the model store {model_store} only, folders also from {working_dir}"
    assert str(caught.value) == f"Model not found at: ./gone: {places}"


@pytest.mark.parametrize("location", ["../x.mar", "a/../../x.mar", "..", "a..b"])
def test_dots_are_refused_with_torchserves_message(location: str, model_store: Path) -> None:
    with pytest.raises(ArchiveNotFound) as caught:
        locate(location, model_store)
    assert str(caught.value) == f"Relative path is not allowed in url: {location}"


def test_an_empty_url_and_a_missing_store(model_store: Path) -> None:
    with pytest.raises(ArchiveNotFound, match=r"^empty url$"):
        locate("", model_store)
    with pytest.raises(ArchiveNotFound, match=r"^Model store has not been configured\.$"):
        locate("x.mar", None)


def test_what_files_there_are_elsewhere_is_not_told(model_store: Path, working_dir: Path) -> None:
    (working_dir / "there").touch()
    told = []
    for path in (working_dir / "there", working_dir / "gone"):
        with pytest.raises(ArchiveNotFound) as caught:
            locate(str(path), model_store)
        told.append((caught.value.status, str(caught.value).replace(str(path), "PATH")))
    assert len(set(told)) == 1
