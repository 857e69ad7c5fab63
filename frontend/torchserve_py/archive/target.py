"""The folder that an archive is unpacked into, and how much may be unpacked.

Nothing is ever written outside the folder, over a file, or through a link. The sizes in an archive's own headers are
never trusted: what is counted is what was unpacked. A client that may register a model can run code on the server
anyway; the limits prevent that a broken or careless archive fills the disk.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.errors import UnsafeArchive

_CHUNK_BYTES = 1 << 20
#: Parts and characters that a path may have. Models need no more, and the calls that make and remove folders recurse.
_MAX_PARTS = 100
_MAX_PATH = 1000
_SUSPECT = re.compile(r"^[A-Za-z]:|[\\\x00-\x1f\x7f]")  # a drive letter, backslashes, control characters


@dataclass(frozen=True, slots=True)
class Limits:
    """What one archive may unpack to.

    max_bytes  all files together: room for the weights of a large language model
    max_files  files and folders together
    max_ratio  unpacked bytes per byte of the archive; weights reach 10, text 20, the DEFLATE format ends at 1032
    ratio_from unpacked bytes from which `max_ratio` counts, so that small archives of regular data are left alone
    """

    max_bytes: int = 512 << 30
    max_files: int = 100_000
    max_ratio: int = 100
    ratio_from: int = 1 << 28


DEFAULT_LIMITS = Limits()


class Target:
    """An empty folder that an archive is unpacked into. `url` names the archive in messages.

    Everything that an archive holds passes through here, so this is where a cancellation takes effect.
    """

    def __init__(
        self,
        url: str,
        root: Path,
        limits: Limits = DEFAULT_LIMITS,
        cancellation: Cancellation | None = None,
    ) -> None:
        self.url = url
        self.root = root
        #: The size of the archive, once it is open.
        self.archive_bytes = 1
        self._limits = limits
        self._cancellation = cancellation or Cancellation()
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

    def count_bytes(self, count: int) -> None:
        """Count unpacked bytes. Raises UnsafeArchive where they are too many, and Cancelled."""
        self._cancellation.check()
        self._bytes += count
        limits = self._limits
        if self._bytes > limits.max_bytes:
            raise UnsafeArchive(self.url, f"it unpacks to more than {limits.max_bytes} bytes")
        if self._bytes > limits.ratio_from and self._bytes > limits.max_ratio * self.archive_bytes:
            detail = f"it unpacks to more than {limits.max_ratio} times its own {self.archive_bytes} bytes"
            raise UnsafeArchive(self.url, detail)

    def _read(self, path: Path, content: BinaryIO) -> Iterator[bytes]:
        while chunk := content.read(_CHUNK_BYTES):
            yield chunk

    def _count_entry(self) -> None:
        self._entries += 1
        if self._entries > self._limits.max_files:
            raise UnsafeArchive(self.url, f"it holds more than {self._limits.max_files} files")

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
