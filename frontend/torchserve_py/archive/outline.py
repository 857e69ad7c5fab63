"""A model at rest, opened without unpacking it: all that its registration reads is there, and nothing else.

An archive becomes a folder for the time being, in which large files and files of other kinds are empty. It passes the
same checks as when it is unpacked, but for the checksums of the files not read. A folder is used in place.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.errors import ArchiveError, UnreadableArchive, UnsafeArchive
from torchserve_py.archive.limits import DEFAULT_LIMITS
from torchserve_py.archive.model_files import ModelFiles, open_folder, open_model
from torchserve_py.archive.target import Target
from torchserve_py.archive.unpack import BROKEN, walk

#: Of files that say how a model is to be served, and of the file with its class.
_READ_SUFFIXES: Final = frozenset((".yaml", ".yml", ".json", ".toml", ".txt", ".lock", ".py"))
#: More is read of none of them when a model is registered; one byte more shows that a file has more.
_MAX_BYTES: Final = 1 << 20


@contextlib.contextmanager
def outline(path: Path, *, url: str, handler: str | None = None) -> Iterator[ModelFiles]:
    """Open the archive file or the folder at `path`; `url` and `handler` are as in `open_model`.

    Raises ArchiveError with what unpacking it would raise.
    """
    if not path.is_file():
        yield open_model(path, path, url=url, handler=handler)
        return
    with tempfile.TemporaryDirectory(prefix="torchserve-outline-") as name:
        folder = Path(name)
        try:
            with path.open("rb") as file:
                walk(file, url, DEFAULT_LIMITS, Cancellation(), lambda meter: _Outline(url, folder, meter))
        except ArchiveError:
            raise
        except BROKEN as error:
            raise UnreadableArchive(url, f"{type(error).__name__}: {error}") from error
        yield open_folder(folder, url, url, handler)


def files_in(model_dir: Path) -> frozenset[str]:
    """The paths of all files in a model's folder, relative to it."""
    return frozenset(str(file.relative_to(model_dir)) for file in model_dir.rglob("*") if file.is_file())


class _Outline(Target):
    """Writes every file, but for most of them no content."""

    def add_file(self, name: str, content: BinaryIO) -> None:
        self._meter.add_entry()
        parts = self._parts(name)
        if not parts:
            raise UnsafeArchive(self._url, f"{name!r} is no file name")
        path = self._root.joinpath(*parts)
        self._make_folder(name, path.parent)
        read = b""
        if PurePosixPath(*parts).suffix in _READ_SUFFIXES:
            read = content.read(_MAX_BYTES + 1)
            self._meter.add_bytes(len(read))
        try:
            with path.open("xb") as file:
                file.write(read)
        except FileExistsError as error:
            raise UnsafeArchive(self._url, f"{name!r} is in it twice") from error
