"""Looking into a model finds what unpacking it finds, and refuses what unpacking it refuses."""

import zipfile
from pathlib import Path

import pytest
from tests.core.archive.conftest import Pack

from torchserve_py.core.archive.errors import ArchiveError, InvalidArchive, UnreadableArchive, UnsafeArchive
from torchserve_py.core.archive.model_files import files_in, open_model, outline


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("archive_format", ["default", "zip-store", "tgz", "no-archive"])
def test_a_packed_model_is_read_as_it_would_be_opened(
    archive_format: str, pack_model: Pack, sources: Path, temp_dir: Path
) -> None:
    path = pack_model(
        archive_format=archive_format,
        serialized_file=str(sources / "weights.pt"),
        config_file=str(sources / "model-config.yaml"),
    )
    opened = open_model(path, temp_dir, url=path.name)
    with outline(path, url=path.name) as outlined:
        assert (outlined.name, outlined.manifest.raw) == (opened.name, opened.manifest.raw)
        assert files_in(outlined.model_dir) == files_in(opened.model_dir)
        assert outlined.config_file is not None
        assert outlined.config_file.read_bytes() == b"batchSize: 2\n"
    assert outlined.model_dir.exists() == (archive_format == "no-archive")


@pytest.mark.parametrize("top", ["", "top/"])
def test_an_archive_without_a_manifest_is_read_as_it_would_be_opened(top: str, tmp_path: Path, temp_dir: Path) -> None:
    files = {"handler.py": b"", "model-config.yaml": b"batchSize: 3", "deep/other.py": b"", "model.pt": b"x"}
    path = write_zip(tmp_path / "my-model.mar", {top + name: content for name, content in files.items()})
    opened = open_model(path, temp_dir, url="my-model.mar")
    with outline(path, url="my-model.mar") as outlined:
        assert (outlined.name, outlined.manifest) == (opened.name, opened.manifest)
        assert files_in(outlined.model_dir) == files.keys()
        assert outlined.config_file is not None
        assert outlined.config_file.read_bytes() == b"batchSize: 3"
        assert (outlined.model_dir / "model.pt").read_bytes() == b""  # nobody reads it


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"../x": b""}, UnsafeArchive),
        ({"/x": b""}, UnsafeArchive),
        ({"MAR-INF/MANIFEST.json": b"{"}, InvalidArchive),
        ({"MAR-INF/MANIFEST.json": b" " * (1 << 20) + b"{}"}, InvalidArchive),
        ({"a_handler.py": b"", "b_handler.py": b""}, InvalidArchive),
    ],
)
def test_what_unpacking_refuses_is_refused(
    files: dict[str, bytes], kind: type[ArchiveError], tmp_path: Path, temp_dir: Path
) -> None:
    path = write_zip(tmp_path / "x.mar", files)
    with pytest.raises(kind) as looked:
        outline(path, url="x.mar").__enter__()
    with pytest.raises(kind) as opened:
        open_model(path, temp_dir, url="x.mar")
    assert looked.value.message.split(" has no ")[-1] == opened.value.message.split(" has no ")[-1]
    assert looked.value.detail == opened.value.detail


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x", b"2")
    with pytest.raises(UnsafeArchive, match="twice"):
        outline(path, url="x.mar").__enter__()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense", b"\x1f\x8bnonsense"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.mar"
    path.write_bytes(content)
    with pytest.raises(UnreadableArchive, match=r"^Failed to save model: x[.]mar: "):
        outline(path, url="x.mar").__enter__()
