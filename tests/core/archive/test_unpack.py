"""Unpacking what must not be trusted: nothing leaves the folder, nothing is left behind."""

import gzip
import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from torchserve_py.core.archive import unpack as unpack_module
from torchserve_py.core.archive.cancellation import CANCELLED, Cancelled
from torchserve_py.core.archive.errors import ArchiveError, UnreadableArchive, UnsafeArchive
from torchserve_py.core.archive.unpack import unpack

Write = Callable[[Path, list[tuple[str, bytes]]], Path]


def write_zip(path: Path, files: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> Path:
    """Files as they are named: the caller puts the top folder before them."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_tar_below_top(path: Path, files: list[tuple[str, bytes]]) -> Path:
    return write_tar(path, [(f"top/{name}", content) for name, content in files])


both = pytest.mark.parametrize("write", [write_zip, write_tar_below_top])


@both
def test_unpacking_can_be_given_up(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    token = CANCELLED.set(cancelled)
    try:
        with pytest.raises(Cancelled):
            unpack(write(tmp_path / "a", [("x", b"content")]), temp_dir, url="a")
    finally:
        CANCELLED.reset(token)
    assert list((temp_dir / "models").iterdir()) == []


def assert_refused(
    archive: Path, temp_dir: Path, kind: type[ArchiveError], match: str | None = None, **limits: int
) -> None:
    before = sorted(path for path in temp_dir.parent.rglob("*") if path != temp_dir / "models")
    with mock.patch.dict(vars(unpack_module), limits), pytest.raises(kind, match=match) as caught:
        unpack(archive, temp_dir, url="evil.mar")
    assert caught.value.message == "Failed to save model: evil.mar"
    assert caught.value.detail
    assert sorted(path for path in temp_dir.parent.rglob("*") if path != temp_dir / "models") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@both
def test_files_come_out_as_they_went_in(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    files = [("MAR-INF/MANIFEST.json", b"{}"), ("a.py", b"pass"), ("sub/deep/b.bin", bytes(3_000_000)), ("empty", b"")]
    folder = unpack(write(tmp_path / "m", files), temp_dir, url="m")
    assert contents(folder) == dict(files)
    assert folder.parent == temp_dir / "models"
    assert len(folder.name) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_kind_of_archive_is_told_by_its_content_not_its_name(tmp_path: Path, temp_dir: Path) -> None:
    assert contents(unpack(write_zip(tmp_path / "a.tgz", [("x", b"1")]), temp_dir, url="a")) == {"x": b"1"}
    assert contents(unpack(write_tar(tmp_path / "b.mar", [("t/x", b"1")]), temp_dir, url="b")) == {"x": b"1"}


@pytest.mark.parametrize(
    ("names", "unpacked"),
    [
        (["top/a.py", "top/top/b.py"], ["a.py", "top/b.py"]),
        (["./a.py", "./code/inference.py"], ["a.py", "code/inference.py"]),
        (["a.pt", "code/inference.py", "weights/b.pt"], ["a.pt", "code/inference.py", "weights/b.pt"]),
        (["MAR-INF/MANIFEST.json"], ["MAR-INF/MANIFEST.json"]),
        (["code/inference.py", "code/labels.txt"], ["code/inference.py", "code/labels.txt"]),
        (["code/inference.py", "code/MAR-INF/MANIFEST.json"], ["MAR-INF/MANIFEST.json", "inference.py"]),
    ],
)
def test_the_only_folder_of_a_tar_is_dropped_but_not_the_manifests(
    tmp_path: Path, temp_dir: Path, names: list[str], unpacked: list[str]
) -> None:
    archive = write_tar(tmp_path / "m.tgz", [(name, b"x") for name in names])
    assert sorted(contents(unpack(archive, temp_dir, url="m"))) == unpacked


def test_a_tar_with_folder_entries_is_unpacked(tmp_path: Path, sources: Path, temp_dir: Path) -> None:
    with tarfile.open(tmp_path / "m.tgz", "w:gz") as archive:
        archive.add(sources, arcname="top")
    assert sorted(contents(unpack(tmp_path / "m.tgz", temp_dir, url="m"))) == sorted(
        path.name for path in sources.iterdir()
    )


@both
@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "a/../../evil",
        "a/..",
        "..\\evil",
        "C:\\evil",
        "C:/evil",
        "c:evil",
        "a\\b",
        "a\nb",
        "a\x1b[2Jb",
        "./..",
    ],
)
def test_a_path_that_may_leave_the_folder_is_refused(write: Write, name: str, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [("good.py", b"pass"), (name, b"evil")])
    assert_refused(archive, temp_dir, UnsafeArchive, "may lead out of the model's folder")


@both
@pytest.mark.parametrize("name", ["a/" * 101 + "x", "a/" * 1500 + "x", "a" * 1001, "a/" * 101], ids=len)
def test_a_path_that_is_too_long_or_deep_is_refused(write: Write, name: str, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [("good.py", b"pass"), (name, b"")])
    assert_refused(archive, temp_dir, UnsafeArchive, "characters and")


@pytest.mark.parametrize("name", ["/evil", "//evil", "/top/evil", "../top/evil"])
def test_an_absolute_or_parent_path_is_refused_before_its_first_component_is_dropped(
    name: str, tmp_path: Path, temp_dir: Path
) -> None:
    assert_refused(write_tar(tmp_path / "m", [(name, b"evil")]), temp_dir, UnsafeArchive, "may lead out")


def test_an_absolute_path_behind_the_dropped_component_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    assert_refused(write_tar(tmp_path / "m", [("top//etc/evil", b"evil")]), temp_dir, UnsafeArchive, "may lead out")


def test_an_absolute_path_in_a_zip_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    assert_refused(write_zip(tmp_path / "m", [("/evil", b"evil")]), temp_dir, UnsafeArchive, "may lead out")


def test_a_null_byte_that_hides_the_end_of_a_name_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    archive = write_zip(tmp_path / "m", [("goodXevil", b"evil")])
    archive.write_bytes(archive.read_bytes().replace(b"goodXevil", b"good\x00evil"))
    assert_refused(archive, temp_dir, ArchiveError)


@both
def test_a_name_that_comes_twice_is_refused(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    with pytest.warns(UserWarning) if write is write_zip else nullcontext():
        archive = write(tmp_path / "m", [("a.py", b"one"), ("a.py", b"two")])
    assert_refused(archive, temp_dir, UnsafeArchive, "a.py' is in it twice")


@both
def test_two_spellings_of_one_name_are_refused(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [("sub/a.py", b"one"), ("sub//./a.py", b"two")])
    assert_refused(archive, temp_dir, UnsafeArchive, "is in it twice")


@both
@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_a_name_that_is_both_file_and_folder_is_refused(
    write: Write, names: tuple[str, str], tmp_path: Path, temp_dir: Path
) -> None:
    archive = write(tmp_path / "m", [(name, b"x") for name in names])
    assert_refused(archive, temp_dir, ArchiveError)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z"]
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, tmp_path: Path, temp_dir: Path) -> None:
    with tarfile.open(tmp_path / "m", "w:gz") as archive:
        member = tarfile.TarInfo("top/link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    assert_refused(tmp_path / "m", temp_dir, UnsafeArchive, "is a link or a device")


def test_a_file_written_through_a_link_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    with tarfile.open(tmp_path / "m", "w:gz") as archive:
        link = tarfile.TarInfo("top/sub")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("top/sub/evil"), io.BytesIO())
    assert_refused(tmp_path / "m", temp_dir, UnsafeArchive, "is a link")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(kind: int, tmp_path: Path, temp_dir: Path) -> None:
    member = zipfile.ZipInfo("link")
    member.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "m", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    assert_refused(tmp_path / "m", temp_dir, UnsafeArchive, "is a link or a device")


@both
def test_more_files_than_the_limit_are_refused(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [(f"{number}", b"") for number in range(11)])
    assert_refused(archive, temp_dir, UnsafeArchive, "more than 10 files", MAX_FILES=10)
    with mock.patch.object(unpack_module, "MAX_FILES", 11):
        assert len(contents(unpack(archive, temp_dir, url="m"))) == 11


@both
def test_more_bytes_than_the_limit_are_refused(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [("a", bytes(600_000)), ("b", bytes(600_000))])
    assert_refused(archive, temp_dir, UnsafeArchive, "more than 1000000 bytes", MAX_BYTES=1_000_000)


@both
def test_a_bomb_is_refused_by_what_comes_out_of_it(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    archive = write(tmp_path / "m", [("a", bytes(5_000_000))])
    assert_refused(archive, temp_dir, UnsafeArchive, "more than 100 times its own", RATIO_FROM=1_000_000)


def test_a_header_that_lies_about_the_size_does_not_get_past_the_limit(tmp_path: Path, temp_dir: Path) -> None:
    archive = write_zip(tmp_path / "m", [("a", bytes(5_000_000))])
    archive.write_bytes(archive.read_bytes().replace((5_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    assert_refused(archive, temp_dir, ArchiveError, MAX_BYTES=1_000_000)


def test_a_zip_whose_entries_overlap_is_measured_by_what_comes_out(tmp_path: Path, temp_dir: Path) -> None:
    """The classic bomb without nesting: many directory entries that share the compressed data of one."""
    with zipfile.ZipFile(tmp_path / "m", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1_000_000))
        archive.filelist += archive.filelist * 19
    assert_refused(tmp_path / "m", temp_dir, ArchiveError, MAX_BYTES=2_000_000)


def test_padding_behind_a_tar_counts(tmp_path: Path, temp_dir: Path) -> None:
    archive = write_tar(tmp_path / "m", [("top/a", b"x")])
    archive.write_bytes(archive.read_bytes() + gzip.compress(bytes(5_000_000)))
    assert_refused(archive, temp_dir, UnsafeArchive, "more than 1000000 bytes", MAX_BYTES=1_000_000)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_header_too_large_for_memory_is_refused(
    kind: bytes, tmp_path: Path, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack_module, "MAX_TAR_HEADER_BYTES", 1000)
    member = tarfile.TarInfo("top/a")
    member.type, member.size = kind, 2000
    with gzip.open(tmp_path / "m", "wb") as file:
        file.write(member.tobuf() + b"x" * 2048)
    assert_refused(tmp_path / "m", temp_dir, UnreadableArchive, "a header of 2000 bytes")


def test_tar_headers_that_nest_without_end_are_refused(tmp_path: Path, temp_dir: Path) -> None:
    record = b"12 path=abc\n"
    member = tarfile.TarInfo("top/a")
    member.type, member.size = tarfile.XHDTYPE, len(record)
    with gzip.open(tmp_path / "m", "wb") as file:
        file.write((member.tobuf() + record.ljust(512, b"\0")) * 20_000)
    assert_refused(tmp_path / "m", temp_dir, UnreadableArchive)


def test_a_sparse_file_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    member = tarfile.TarInfo("top/a")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    with gzip.open(tmp_path / "m", "wb") as file:
        file.write(member.tobuf() + bytes(1024))
    with pytest.raises(ArchiveError, match="'top/a' is a sparse file"):
        unpack(tmp_path / "m", temp_dir, url="m")
    assert_refused(tmp_path / "m", temp_dir, ArchiveError)


def test_an_encrypted_zip_is_refused(tmp_path: Path, temp_dir: Path) -> None:
    archive = write_zip(tmp_path / "m", [("a", b"x")])
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    content[6] |= 1
    archive.write_bytes(content)
    assert_refused(archive, temp_dir, UnreadableArchive, "encrypted")


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"not an archive", b"\x1f\x8b", b"PK\x03\x04", b"\x1f\x8b\x08\x00" * 9]
)
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path, temp_dir: Path) -> None:
    (tmp_path / "m").write_bytes(content)
    assert_refused(tmp_path / "m", temp_dir, UnreadableArchive)


@both
def test_an_archive_cut_off_anywhere_is_refused(write: Write, tmp_path: Path, temp_dir: Path) -> None:
    files = [(f"file{number}", bytes(range(256)) * number) for number in range(6)]
    whole = write(tmp_path / "m", files).read_bytes()
    for length in range(0, len(whole) - 1, 37):
        (tmp_path / "m").write_bytes(whole[:length])
        assert_refused(tmp_path / "m", temp_dir, UnreadableArchive)


def test_one_wrong_bit_in_a_file_is_noticed(tmp_path: Path, temp_dir: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m", "w") as archive:
        archive.writestr("a", b"weights weights weights")
    content = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(content.replace(b"weights weights", b"weights Weights"))
    assert_refused(tmp_path / "m", temp_dir, UnreadableArchive, "CRC")


@both
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_archive_is_read_or_refused_and_nothing_else(
    write: Write, flips: list[tuple[int, int]], tmp_path: Path, temp_dir: Path
) -> None:
    content = bytearray(write(tmp_path / "m", [("a/b.py", b"pass"), ("c", b"0123456789" * 20)]).read_bytes())
    if write is not write_zip:
        content = bytearray(gzip.decompress(bytes(content)))
    for position, value in flips:
        content[position % len(content)] = value
    (tmp_path / "m").write_bytes(bytes(content) if write is write_zip else gzip.compress(bytes(content)))
    try:
        with mock.patch.object(unpack_module, "MAX_BYTES", 1_000_000):
            folder = unpack(tmp_path / "m", temp_dir, url="m")
    except ArchiveError:
        return
    assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))


def test_an_archive_that_is_gone_cannot_be_read(tmp_path: Path, temp_dir: Path) -> None:
    assert_refused(tmp_path / "gone.mar", temp_dir, UnreadableArchive, "No such file")
