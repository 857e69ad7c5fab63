"""From a URL to a model's files: downloaded or found in the store, opened, and removed again."""

import hashlib
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.core.archive.conftest import ANY, LOOPBACK, Pack, WebServer, files_in, sends

from torchserve_py.core.archive import obtain as obtaining
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import ArchiveExists, ArchiveNotFound, DownloadError, InvalidArchive

obtain = partial(obtaining.obtain, policy=DownloadPolicy(ANY, LOOPBACK))


def test_a_downloaded_model_is_opened_and_removed(
    web: WebServer, pack_model: Pack, tmp_path: Path, temp_dir: Path
) -> None:
    web.answers["/noop.mar"] = sends(pack_model().read_bytes())
    store = tmp_path / "empty"
    store.mkdir()
    files = obtain(f"{web.url}/noop.mar", model_store=store, temp_dir=temp_dir)
    assert files.name == "noop"
    files.remove()
    assert files_in(store) == ["noop.mar"]
    files.remove(downloaded=True)
    assert files_in(store) == []


def test_a_downloaded_archive_that_is_no_model_is_removed_again(
    web: WebServer, model_store: Path, pack_model: Pack, tmp_path: Path, temp_dir: Path
) -> None:
    folder = pack_model(archive_format="no-archive")
    (folder / "MAR-INF" / "MANIFEST.json").write_text("{")
    bad = Path(shutil.make_archive(str(tmp_path / "bad"), "zip", folder))
    shutil.rmtree(folder)
    web.answers["/bad.mar"] = sends(bad.read_bytes())
    with pytest.raises(InvalidArchive):
        obtain(f"{web.url}/bad.mar", model_store=model_store, temp_dir=temp_dir)
    assert files_in(model_store) == []
    assert files_in(temp_dir / "models") == []


def test_a_model_of_the_store_is_opened_by_its_name(model_store: Path, pack_model: Pack, temp_dir: Path) -> None:
    pack_model()
    files = obtain("noop.mar", model_store=model_store, temp_dir=temp_dir)
    assert files.name == "noop"
    files.remove(downloaded=True)
    assert files_in(model_store) == ["noop.mar"]


def test_a_file_of_the_store_is_taken_for_an_earlier_download_when_it_may_be(
    web: WebServer, model_store: Path, pack_model: Pack, temp_dir: Path
) -> None:
    pack_model()
    url = f"{web.url}/noop.mar"  # which the web server does not have
    with pytest.raises(ArchiveExists):
        obtain(url, model_store=model_store, temp_dir=temp_dir)
    with pytest.raises(ArchiveNotFound):
        obtain(url, model_store=model_store, temp_dir=temp_dir, reuse=True, policy=DownloadPolicy())
    files = obtain(url, model_store=model_store, temp_dir=temp_dir, reuse=True)
    assert files.name == "noop"
    files.remove(downloaded=True)
    assert files_in(model_store) == ["noop.mar"]


def test_an_earlier_download_must_have_the_checksum_too(model_store: Path, pack_model: Pack, temp_dir: Path) -> None:
    archive = pack_model()
    right = f"https://h.example/noop.mar#sha256={hashlib.sha256(archive.read_bytes()).hexdigest()}"
    wrong = f"https://h.example/noop.mar#sha256={'0' * 64}"
    files = obtain(right, model_store=model_store, temp_dir=temp_dir, reuse=True)
    assert files.name == "noop"
    with pytest.raises(DownloadError, match=r"the sha256 of noop[.]mar in the model store is"):
        obtain(wrong, model_store=model_store, temp_dir=temp_dir, reuse=True)
    assert files_in(model_store) == ["noop.mar"]
