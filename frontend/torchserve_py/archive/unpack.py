"""Unpacking an archive file: ZIP (`.mar`) or gzip tar (`.tgz`, `.tar.gz`), told apart by their first bytes.

A failed unpack leaves nothing behind. See `target` for what is refused and `limits` for how much is allowed.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self, cast

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.errors import UnreadableArchive, UnsafeArchive
from torchserve_py.archive.limits import DEFAULT_LIMITS, Limits, Meter
from torchserve_py.archive.manifest import MANIFEST_PATH
from torchserve_py.archive.target import Target

MAX_TAR_HEADER_BYTES = 1 << 20  # tarfile holds a long name or a pax header in memory

_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_GZIP_START = b"\x1f\x8b"
_ENCRYPTED = 0x1
_TAR_BUFFER_BYTES = 1 << 16
#: What the libraries raise when an archive is broken.
BROKEN = (
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
        folder.mkdir(mode=0o700, parents=True)
        with archive.open("rb") as file:
            _unpack_into(folder, file, url, limits, cancellation or Cancellation())
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, BROKEN):
            raise UnreadableArchive(url, f"{type(error).__name__}: {error}") from error
        raise
    return folder


def _unpack_into(folder: Path, file: BinaryIO, url: str, limits: Limits, cancellation: Cancellation) -> None:
    walk(file, url, limits, cancellation, lambda meter: Target(url, folder, meter))


def walk(
    file: BinaryIO,
    url: str,
    limits: Limits,
    cancellation: Cancellation,
    target_for: Callable[[Meter], Target],
) -> None:
    """Give every file and folder of an archive to a target. Raises UnreadableArchive, UnsafeArchive and `BROKEN`."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    meter = Meter(url, size, limits, cancellation)
    target = target_for(meter)
    if start in _ZIP_STARTS:
        _unpack_zip(file, target, url)
    elif start.startswith(_GZIP_START):
        _unpack_tar(file, target, meter, url)
    else:
        raise UnreadableArchive(url, "it is neither a ZIP archive (.mar) nor a gzip tar archive (.tgz, .tar.gz)")


def _unpack_zip(file: BinaryIO, target: Target, url: str) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise UnsafeArchive(url, _no_plain_file(member.filename))
            if member.flag_bits & _ENCRYPTED:
                raise UnreadableArchive(url, f"{member.filename!r} is encrypted")
            if member.is_dir():
                target.add_folder(member.orig_filename)
            else:
                with archive.open(member) as content:
                    target.add_file(member.orig_filename, cast(BinaryIO, content))


def _unpack_tar(file: BinaryIO, target: Target, meter: Meter, url: str) -> None:
    """TorchServe's archiver puts everything below one folder, so the first component of a path is dropped."""
    with (
        gzip.GzipFile(fileobj=file) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=_TAR_BUFFER_BYTES, tarinfo=_TarMember) as archive,
    ):
        for member in archive:
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise UnsafeArchive(url, _no_plain_file(member.name))
            name = _without_first_component(member.name)
            if member.isdir():
                target.add_folder(name)
            else:
                target.add_file(name, cast(BinaryIO, archive.extractfile(member)))
        while padding := stream.read(_TAR_BUFFER_BYTES):  # to the end, where the checksum tells a truncated archive
            meter.add_bytes(len(padding))


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
