"""The folder that an archive is unpacked into. Nothing is ever written outside it, over a file, or through a link."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from torchserve_py.archive.errors import UnsafeArchive
from torchserve_py.archive.limits import Meter

_CHUNK_BYTES = 1 << 20
#: Parts and characters that a path may have. Models need no more, and the calls that make and remove folders recurse.
_MAX_PARTS = 100
_MAX_PATH = 1000
_SUSPECT = re.compile(r"^[A-Za-z]:|[\\\x00-\x1f\x7f]")  # a drive letter, backslashes, control characters


class Target:
    """An empty folder and the meter of what goes into it. `url` names the archive in messages."""

    def __init__(self, url: str, root: Path, meter: Meter) -> None:
        self._url = url
        self._root = root
        self._meter = meter

    def add_folder(self, name: str) -> None:
        """Make the folder `name` and those above it. It may exist already."""
        self._meter.add_entry()
        self._make_folder(name, self._root.joinpath(*self._parts(name)))

    def add_file(self, name: str, content: BinaryIO) -> None:
        """Write the file `name`. Raises UnsafeArchive where the archive has written that name before."""
        self._meter.add_entry()
        parts = self._parts(name)
        if not parts:
            raise UnsafeArchive(self._url, f"{name!r} is no file name")
        path = self._root.joinpath(*parts)
        self._make_folder(name, path.parent)
        try:
            file = path.open("xb")
        except FileExistsError as error:
            raise UnsafeArchive(self._url, f"{name!r} is in it twice") from error
        with file:
            while chunk := content.read(_CHUNK_BYTES):
                self._meter.add_bytes(len(chunk))
                file.write(chunk)

    def _make_folder(self, name: str, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UnsafeArchive(self._url, f"{name!r} is both a file and a folder") from error

    def _parts(self, name: str) -> tuple[str, ...]:
        """The parts of the path below the folder. Raises UnsafeArchive where it may lead out or is too long."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or _SUSPECT.search(name):
            raise UnsafeArchive(self._url, f"the path {name!r} may lead out of the model's folder")
        if len(name) > _MAX_PATH or len(path.parts) > _MAX_PARTS:
            raise UnsafeArchive(
                self._url,
                f"the path {name[:100]!r}... has {len(name)} characters and {len(path.parts)} parts; it may have"
                f" {_MAX_PATH} and {_MAX_PARTS}",
            )
        return path.parts
