"""The files of one journal: one for each hour and server, or more if they grow large, and the oldest are removed.

A file is written by one server from its beginning; after a restart there is another one. Records are whole lines, and
what could be written only in part is cut off again. A disk that refuses leaves no file without a record.
"""

import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final

from torchserve_py.tools.journal.sealed_lines import Sealer

SUFFIX: Final = ".jsonl"
#: The most bytes of a file, unless few are kept: then one of so many parts.
_LARGEST_FILE: Final = 256 << 20
_FILES_AT_LEAST: Final = 8
_HOUR: Final = 3600.0
_ONLY_FOR_THE_SERVER: Final = 0o600


class JournalFiles:
    """Writes the files in a folder, which it makes. Raises OSError: the folder cannot be written to.

    Used by one thread at a time. Without a key the files are not encrypted.
    """

    def __init__(self, folder: Path, keep_hours: int, keep_bytes: int, key: bytes | None) -> None:
        folder.mkdir(_ONLY_FOR_THE_SERVER | stat.S_IXUSR, parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, _ONLY_FOR_THE_SERVER))
        probe.unlink()
        self.folder: Final = folder
        self._keep_seconds = keep_hours * _HOUR
        self._keep_bytes = keep_bytes
        self._largest = min(_LARGEST_FILE, max(1, keep_bytes // _FILES_AT_LEAST))
        self._key = key
        self._sealer: Sealer | None = None
        self._hour = ""
        self._file: Path | None = None
        self._out: FileIO | None = None
        self._size = 0
        self._head = 0  # bytes before the first record

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines to the file of this hour. Raises OSError: none of them is written."""
        hour = time.strftime("%Y-%m-%dT%H", time.gmtime())
        if self._out is None or hour != self._hour or self._size >= self._largest:
            self._begin(hour)
        sealer = self._sealer
        self._append(b"".join(lines if sealer is None else [sealer.seal(line) for line in lines]))

    def tidy(self) -> None:
        """Remove files that are older than they may be, and the oldest while all have too many bytes."""
        oldest_kept = time.time() - self._keep_seconds
        kept: list[tuple[Path, int]] = []
        for file in sorted(self.folder.glob(f"*{SUFFIX}")):
            with suppress(FileNotFoundError):  # another server that shares the folder has removed it
                told = file.stat()
                if told.st_mtime < oldest_kept and file != self._file:
                    file.unlink()
                else:
                    kept.append((file, told.st_size))
        excess = sum(size for _, size in kept) - self._keep_bytes
        for file, size in kept:
            if excess > 0 and file != self._file:
                file.unlink(missing_ok=True)
                excess -= size

    def _begin(self, hour: str) -> None:
        self._out = None
        for number in _numbers(self.folder.glob(f"{hour}-*{SUFFIX}")):
            file = self.folder / f"{hour}-{number:03}{SUFFIX}"
            with suppress(FileExistsError):
                self._out = FileIO(file, "x", opener=_only_for_the_server)
                break
        self._hour, self._file, self._size, self._head = hour, file, 0, 0
        self._sealer = None if self._key is None else Sealer(self._key)
        if self._sealer is not None:
            self._append(self._sealer.first_line)
            self._head = self._size
        self.tidy()

    def _append(self, content: bytes) -> None:
        """Write all of it, or nothing. Raises OSError: nothing was written."""
        out, left = self._out, memoryview(content)
        if out is None:
            raise OSError(f"no name for another file is free in {self.folder}")
        try:
            while left:
                left = left[out.write(left) or 0 :]
        except OSError:
            if not self._cut_off(out):
                self._give_up()
            raise
        self._size += len(content)

    def _cut_off(self, out: FileIO) -> bool:
        """Cut off what was written in part; return whether the file can go on.

        One with sealed lines cannot: their numbers would not be those in the file, or be used twice for one key.
        """
        try:
            out.truncate(self._size)
        except OSError:
            return False
        return self._sealer is None and self._size > 0

    def _give_up(self) -> None:
        """Begin another file with the next record; one without a record goes, so that a full disk has not thousands."""
        self._out = None
        if self._file is not None and self._size <= self._head:
            with suppress(OSError):
                self._file.unlink()


def _only_for_the_server(file: str, flags: int) -> int:
    return os.open(file, flags | os.O_APPEND, _ONLY_FOR_THE_SERVER)


def _numbers(files: Iterable[Path]) -> Iterable[int]:
    """Return the numbers for a new file beside these, the first of which is probably free."""
    given = [int(number) for file in files if (number := file.name.removesuffix(SUFFIX).rpartition("-")[2]).isdecimal()]
    first = max(given, default=0) + 1
    return range(first, first + 10_000)
