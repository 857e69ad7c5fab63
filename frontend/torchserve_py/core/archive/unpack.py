"""Unpacking an archive file: ZIP (`.mar`) or gzip tar (`.tgz`, `.tar.gz`), told apart by their first bytes.

A failed unpack leaves nothing behind. Nothing is ever written outside the archive's folder, over a file, or through a
link. The sizes in an archive's own headers are never trusted: what is counted is what was unpacked. A client that may
register a model can run code on the server anyway; the limits prevent that a broken or careless archive fills the disk.
"""

import gzip
import io
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Self, cast

from torchserve_py.core.archive.cancellation import check_cancelled
from torchserve_py.core.archive.contracts import telling_files
from torchserve_py.core.archive.errors import UnreadableArchive, UnsafeArchive
from torchserve_py.core.archive.manifest import MANIFEST_PATH
from ts.protocol.misplaced_files import misplaced
from ts.protocol.regular_files import open_regular

#: Of all files of an archive together: room for the weights of a large language model.
MAX_BYTES = 512 << 30
#: Files and folders together.
MAX_FILES = 100_000
#: Unpacked bytes per byte of the archive; weights reach 10, text 20, the DEFLATE format ends at 1032. It counts from so
#: many unpacked bytes on, so that small archives of regular data are left alone.
MAX_RATIO = 100
RATIO_FROM = 1 << 28
MAX_TAR_HEADER_BYTES = 1 << 20  # tarfile holds a long name or a pax header in memory

#: Of files that say how a model is to be served, and of the file with its class.
_READ_SUFFIXES: Final = frozenset((".yaml", ".yml", ".json", ".toml", ".txt", ".lock", ".py"))
#: A registration reads at most so many bytes of each; one byte more shows that a file is larger.
_OUTLINED_BYTES: Final = 1 << 20

_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP_START = b"\x1f\x8b"
_ENCRYPTED = 0x1
_TAR_BUFFER_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
#: Parts and characters that a path may have. Models need no more, and the calls that make and remove folders recurse.
_MAX_PARTS = 100
_MAX_PATH = 1000
_SUSPECT = re.compile(r"^[A-Za-z]:|[\\\x00-\x1f\x7f]")  # a drive letter, backslashes, control characters
#: What the libraries raise when an archive is broken.
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,  # a compression method that zipfile does not know
    ValueError,  # nonsense numbers in a header
    OverflowError,
    IndexError,
    struct.error,
    RecursionError,  # tar headers that nest without end
)


class Target:
    """An empty folder that an archive is unpacked into. `url` names the archive in messages.

    Everything that an archive holds passes through here, so this is where a cancellation takes effect.
    """

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.root = root
        #: The size of the archive, once it is open.
        self.archive_bytes = 1
        self._bytes = 0
        self._entries = 0

    def add_folder(self, name: str) -> None:
        """Make the folder `name` and those above it. It may exist already."""
        self._count_entry()
        self._make_folder(name, self.root.joinpath(*self._parts(name)))

    def add_file(self, name: str, content: BinaryIO) -> None:
        """Write the file `name`. Raises UnsafeArchive where the archive has written that name before."""
        self._count_entry()
        parts = self._parts(name)
        if not parts:
            raise UnsafeArchive(self.url, f"{name!r} is no file name")
        path = self.root.joinpath(*parts)
        self._make_folder(name, path.parent)
        try:
            file = path.open("xb")
        except FileExistsError as error:
            raise UnsafeArchive(self.url, f"{name!r} is in it twice") from error
        with file:
            for chunk in self._read(path, content):
                self.count_bytes(len(chunk))
                file.write(chunk)

    def check(self, name: str) -> None:
        """Raise UnsafeArchive where the path `name` may lead out of the folder or is too long."""
        self._parts(name)

    def count_bytes(self, count: int) -> None:
        """Count unpacked bytes. Raises UnsafeArchive where they are too many, and Cancelled."""
        check_cancelled()
        self._bytes += count
        if self._bytes > MAX_BYTES:
            raise UnsafeArchive(self.url, f"it unpacks to more than {MAX_BYTES} bytes")
        if self._bytes > RATIO_FROM and self._bytes > MAX_RATIO * self.archive_bytes:
            detail = f"it unpacks to more than {MAX_RATIO} times its own {self.archive_bytes} bytes"
            raise UnsafeArchive(self.url, detail)

    def _read(self, path: Path, content: BinaryIO) -> Iterator[bytes]:
        while chunk := content.read(_CHUNK_BYTES):
            yield chunk

    def _count_entry(self) -> None:
        self._entries += 1
        if self._entries > MAX_FILES:
            raise UnsafeArchive(self.url, f"it holds more than {MAX_FILES} files")

    def _make_folder(self, name: str, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UnsafeArchive(self.url, f"{name!r} is both a file and a folder") from error

    def _parts(self, name: str) -> tuple[str, ...]:
        """The parts of the path below the folder. Raises UnsafeArchive where it may lead out or is too long."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or _SUSPECT.search(name):
            raise UnsafeArchive(self.url, f"the path {name!r} may lead out of the model's folder")
        if len(name) > _MAX_PATH or len(path.parts) > _MAX_PARTS:
            raise UnsafeArchive(
                self.url,
                f"the path {name[:100]!r}... has {len(name)} characters and {len(path.parts)} parts; it may have"
                f" {_MAX_PATH} and {_MAX_PARTS}",
            )
        return path.parts


def unpack(archive: Path, temp_dir: Path, *, url: str) -> Path:
    """Unpack `archive` into a new private folder `<temp_dir>/models/<32 hex>` and return that folder.

    `url` names the archive in messages. Raises UnsafeArchive, UnreadableArchive and Cancelled; then nothing remains.
    """
    folder = temp_dir / "models" / uuid.uuid4().hex
    try:
        unpack_into(Target(url, folder), archive)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


class _Outline(Target):
    """Writes every file, but for most of them no content."""

    def _read(self, path: Path, content: BinaryIO) -> Iterator[bytes]:
        if path.suffix in _READ_SUFFIXES:
            yield content.read(_OUTLINED_BYTES + 1)


def unpack_outline(archive: Path, folder: Path, *, url: str) -> None:
    """Unpack `archive` into a folder, without the content of large files and of what a registration does not read.

    It passes the same checks as with `unpack`, but for the checksums of the files not read. Raises UnsafeArchive,
    UnreadableArchive and Cancelled.
    """
    unpack_into(_Outline(url, folder), archive)


def is_archive(file: BinaryIO) -> bool:
    """Whether a file begins as archives do; its position is the beginning afterwards."""
    start = _start_of(file)
    return start in _ZIP_STARTS or start.startswith(_GZIP_START)


def _start_of(file: BinaryIO) -> bytes:
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return start


def unpack_into(target: Target, archive: Path) -> None:
    """Give every file and folder of an archive to a target. Raises UnreadableArchive, UnsafeArchive and Cancelled."""
    try:
        target.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(open_regular(archive), "rb") as file:
            target.archive_bytes = file.seek(0, io.SEEK_END)
            start = _start_of(file)
            if start in _ZIP_STARTS:
                _unpack_zip(file, target)
            elif start.startswith(_GZIP_START):
                _unpack_tar(file, target)
            else:
                what = misplaced(archive)
                detail = f"it {what}" if what else "it is neither a ZIP archive (.mar) nor a gzip tar (.tgz, .tar.gz)"
                raise UnreadableArchive(target.url, detail)
    except _BROKEN as error:
        raise UnreadableArchive(target.url, f"{type(error).__name__}: {error}") from error


def _unpack_zip(file: BinaryIO, target: Target) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnsafeArchive(target.url, _no_plain_file(member.filename))
            if member.flag_bits & _ENCRYPTED:
                raise UnreadableArchive(target.url, f"{member.filename!r} is encrypted")
            if member.is_dir():
                target.add_folder(member.orig_filename)
            else:
                with archive.open(member) as content:
                    target.add_file(member.orig_filename, cast(BinaryIO, content))


def _unpack_tar(file: BinaryIO, target: Target) -> None:
    with (
        gzip.GzipFile(fileobj=file) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=_TAR_BUFFER_BYTES, tarinfo=_TarMember) as archive,
    ):
        for member in archive:
            if member.issparse():
                raise UnsafeArchive(target.url, f"{member.name!r} is a sparse file: make the archive without tar's -S")
            if not (member.isreg() or member.isdir()):
                raise UnsafeArchive(target.url, _no_plain_file(member.name))
            target.check(member.name.partition("/")[2])  # what the name becomes below one folder
            if member.isdir():
                target.add_folder(member.name)
            else:
                target.add_file(member.name, cast(BinaryIO, archive.extractfile(member)))
        while padding := stream.read(_TAR_BUFFER_BYTES):  # to the end, where the checksum tells a truncated archive
            target.count_bytes(len(padding))
    _lift_only_folder(target.root)


def only_folder(root: Path) -> Path | None:
    """Return the folder below which the whole model is, if there is one. Raises OSError.

    The folder of a manifest is a part of a model, and so is that of a script which tells a contract by its place
    (``code/inference.py``), unless a manifest is beside the script.
    """
    entries = list(root.iterdir())
    if len(entries) != 1 or not entries[0].is_dir() or entries[0].name == MANIFEST_PATH.parts[0]:
        return None
    is_part = telling_files(root) and not (entries[0] / MANIFEST_PATH).is_file()
    return None if is_part else entries[0]


def _lift_only_folder(root: Path) -> None:
    """Move everything up if it is below one folder, as in what TorchServe's archiver writes."""
    folder = only_folder(root)
    if folder is None:
        return
    folder = folder.rename(root / uuid.uuid4().hex)  # a file in it may have the folder's name
    for entry in list(folder.iterdir()):
        entry.rename(root / entry.name)
    folder.rmdir()


def _no_plain_file(name: str) -> str:
    return f"{name!r} is a link or a device, only files and folders are allowed"


class _TarMember(tarfile.TarInfo):
    """A member whose extended header is refused before tarfile reads it into memory when it is too large."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        header_types = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        long_types = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if member.type in (*header_types, *long_types) and member.size > MAX_TAR_HEADER_BYTES:
            raise tarfile.TarError(f"a header of {member.size} bytes")
        return member
