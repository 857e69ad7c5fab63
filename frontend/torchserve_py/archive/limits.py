"""Limits how much an archive may unpack to, counted in actually unpacked bytes.

The sizes in an archive's own headers are never trusted. A client that may register a model can run code on the server
anyway; the limits prevent that a broken or careless archive fills the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.errors import UnsafeArchive

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What one archive may unpack to.

    max_bytes  all files together: room for the weights of a large language model.
    max_files  files and folders together.
    max_ratio  unpacked bytes per byte of the archive. Weights reach 10, text 20, the DEFLATE format ends at 1032.
    ratio_from unpacked bytes from which `max_ratio` counts, so that small archives of regular data are left alone.
    """

    max_bytes: int = 512 * GIB
    max_files: int = 100_000
    max_ratio: int = 100
    ratio_from: int = GIB // 4


DEFAULT_LIMITS = Limits()


class Meter:
    """Counts what one archive unpacks to, and raises UnsafeArchive when that is more than its limits.

    It raises Cancelled when the unpacking is given up: it is what every piece of it passes.
    """

    def __init__(self, url: str, archive_bytes: int, limits: Limits, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._url = url
        self._archive_bytes = max(archive_bytes, 1)
        self._limits = limits
        self._bytes = 0
        self._entries = 0

    def add_entry(self) -> None:
        self._entries += 1
        if self._entries > self._limits.max_files:
            raise UnsafeArchive(self._url, f"it holds more than {self._limits.max_files} files")

    def add_bytes(self, count: int) -> None:
        self._cancellation.check()
        self._bytes += count
        limits = self._limits
        if self._bytes > limits.max_bytes:
            raise UnsafeArchive(self._url, f"it unpacks to more than {limits.max_bytes} bytes")
        if self._bytes > limits.ratio_from and self._bytes > limits.max_ratio * self._archive_bytes:
            detail = f"it unpacks to more than {limits.max_ratio} times its own {self._archive_bytes} bytes"
            raise UnsafeArchive(self._url, detail)
