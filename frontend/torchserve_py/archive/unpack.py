"""Unpacking an archive file: ZIP (`.mar`) or gzip tar (`.tgz`, `.tar.gz`), told apart by their first bytes.

A failed unpack leaves nothing behind. See `target` for what is refused.
"""

import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import uuid
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, Self, cast

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.errors import UnreadableArchive, UnsafeArchive
from torchserve_py.archive.manifest import MANIFEST_PATH
from torchserve_py.archive.target import DEFAULT_LIMITS, Limits, Target

MAX_TAR_HEADER_BYTES = 1 << 20  # tarfile holds a long name or a pax header in memory

_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP_START = b"\x1f\x8b"
_ENCRYPTED = 0x1
_TAR_BUFFER_BYTES = 1 << 16
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


def unpack(
    archive: Path,
    temp_dir: Path,
    *,
    url: str,
    limits: Limits = DEFAULT_LIMITS,
    cancellation: Cancellation | None = None,
) -> Path:
    """Unpack `archive` into a new private folder `<temp_dir>/models/<32 hex>` and return that folder.

    `url` names the archive in messages. Raises UnsafeArchive, UnreadableArchive and Cancelled; then nothing remains.
    """
    folder = temp_dir / "models" / uuid.uuid4().hex
    try:
        unpack_into(Target(url, folder, limits, cancellation), archive)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


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
        with archive.open("rb") as file:
            target.archive_bytes = file.seek(0, io.SEEK_END)
            start = _start_of(file)
            if start in _ZIP_STARTS:
                _unpack_zip(file, target)
            elif start.startswith(_GZIP_START):
                _unpack_tar(file, target)
            else:
                detail = "it is neither a ZIP archive (.mar) nor a gzip tar archive (.tgz, .tar.gz)"
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
    """TorchServe's archiver puts everything below one folder, so the first component of a path is dropped."""
    with (
        gzip.GzipFile(fileobj=file) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=_TAR_BUFFER_BYTES, tarinfo=_TarMember) as archive,
    ):
        for member in archive:
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise UnsafeArchive(target.url, _no_plain_file(member.name))
            name = _without_first_component(member.name)
            if member.isdir():
                target.add_folder(name)
            else:
                target.add_file(name, cast(BinaryIO, archive.extractfile(member)))
        while padding := stream.read(_TAR_BUFFER_BYTES):  # to the end, where the checksum tells a truncated archive
            target.count_bytes(len(padding))


def _no_plain_file(name: str) -> str:
    return f"{name!r} is a link or a device, only files and folders are allowed"


def _without_first_component(name: str) -> str:
    """Drop the first component, unless it is the only one or the manifest's own folder."""
    if name.startswith("/") or name.split("/", 1)[0] in ("..", MANIFEST_PATH.parts[0]):
        return name
    return name.split("/", 1)[1] if "/" in name else name


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
