"""Sequences in memory that a server leaves to the next one when it stops: each in a file, which one server takes.

A file is named after the sequence, and when that has been idle for too long. It has a line that names the format, the
CRC-32 of what follows, what the scheduler knew of the sequence as msgpack behind its length, and what its worker gave
(`ts.sequences.handover`). None of it is code.
"""

import asyncio
import contextlib
import hashlib
import math
import os
import struct
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgpack

from torchserve_py.core.scheduling.sequence_source import LeftSequence

_FIRST_LINE: Final = b"torchserve-py left sequence 1\n"
_NUMBER: Final = struct.Struct(">I")
#: For how long a sequence is kept that is never idle for too long (seconds).
_LONGEST: Final = 30 * 86_400.0
#: After how long a file is nobody's that is being written, or was taken by a server that died then (seconds).
_ABANDONED: Final = 3600.0


class Damaged(ValueError):
    """A file cannot be read; the message says why."""


class Left(NamedTuple):
    """A sequence that another server has left: what its scheduler and its worker knew of it."""

    sequence: LeftSequence
    given: memoryview


class LeftSequences:
    """Those of one model, by their ids. `look`, `write` and `read` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Held while they change hands within this process, as they do when a version is loaded again.
        self.changing_hands = asyncio.Lock()
        #: By sequence, the latest attempt to give it to a worker.
        self.fetching: dict[str, asyncio.Task[None]] = {}
        #: The version and the file of each, by the name of its sequence.
        self._files: dict[str, tuple[str, Path]] = {}
        #: The version of each that is about to be left, by the name of its sequence, and whether it is lost after all.
        self._coming: dict[str, tuple[str, asyncio.Future[bool]]] = {}

    def look(self) -> None:
        """Note which sequences there are; remove those that are over."""
        now = time.time()
        for path in self._folder.glob("*/*"):
            name, _, end = path.name.partition(".")
            if name and end.isdecimal() and int(end) > now:
                self._files[name] = unquote(path.parent.name[1:]), path
            elif name or path.stat().st_mtime < now - _ABANDONED:
                with contextlib.suppress(OSError):
                    path.unlink()

    def version_of(self, sequence_id: str) -> str | None:
        """Return the version of a sequence that is there, or is to come; None if there is none."""
        if not (self._files or self._coming):
            return None
        name = _name_of(sequence_id)
        found = self._files.get(name) or self._coming.get(name)
        return None if found is None else found[0]

    def expect(self, version: str, sequence_ids: Iterable[str]) -> None:
        """Let these sequences count from now on, before they come: each will be `published` or `absent`."""
        loop = asyncio.get_running_loop()
        self._coming.update({_name_of(each): (version, loop.create_future()) for each in sequence_ids})

    async def wait_for(self, sequence_id: str) -> bool:
        """Wait until a sequence that is expected has come, or is not to come; return whether it is lost then."""
        coming = self._coming.get(_name_of(sequence_id))
        return coming is not None and await asyncio.shield(coming[1])

    def published(self, version: str, sequence_id: str, path: Path) -> None:
        """Let the next server, or another one of this process, have a file that was written. Raises OSError."""
        name, there = _name_of(sequence_id), path.with_name(path.name[1:])
        path.rename(there)
        self._files[name] = version, there
        self._came(name, is_lost=False)

    def absent(self, sequence_id: str, *, is_lost: bool) -> None:
        """Note that a sequence which was expected is over, or has nothing to be left."""
        self._came(_name_of(sequence_id), is_lost=is_lost)

    def lose_expected(self) -> None:
        """Note that all that is still expected is lost."""
        for name in list(self._coming):
            self._came(name, is_lost=True)

    def _came(self, name: str, *, is_lost: bool) -> None:
        if (coming := self._coming.pop(name, None)) is not None:
            coming[1].set_result(is_lost)

    def write(self, version: str, sequence_id: str, left: LeftSequence, rest: float, given: Iterable[bytes]) -> Path:
        """Write a sequence that may be idle for ``rest`` seconds more; it counts once the file is `published`.

        Raises OSError.
        """
        name, folder = _name_of(sequence_id), self._folder / f"v{quote(version, safe='')}"  # a version may be `..`
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = msgpack.packb([left.tokens, None if math.isinf(left.time_left) else left.time_left])
        parts = [_NUMBER.pack(len(known)), known, *given]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        path = folder / f".{name}.{math.ceil(time.time() + min(rest, _LONGEST))}"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines([_FIRST_LINE, _NUMBER.pack(checksum), *parts])
        except OSError:
            path.unlink(missing_ok=True)  # the disk may be full
            raise
        return path

    def read(self, sequence_id: str) -> Left | None:
        """Take a sequence, which no other server gets from now on; None if another one has it, or it has not come.

        It can be read again until this one has called `forget`. Raises OSError; Damaged.
        """
        name = _name_of(sequence_id)
        if name not in self._files:
            return None
        version, path = self._files[name]
        if path.name.startswith(name):
            taken = path.with_name(f".taken-{path.name}")
            try:
                path.rename(taken)
            except FileNotFoundError:
                return None
            os.utime(taken)
            path = taken
            self._files[name] = version, path
        return _read(path.read_bytes())

    def forget(self, sequence_id: str) -> None:
        """Remove a sequence, which has a worker now, or is of no use."""
        if (found := self._files.pop(_name_of(sequence_id), None)) is not None:
            found[1].unlink(missing_ok=True)


def _name_of(sequence_id: str) -> str:
    return hashlib.blake2b(sequence_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read(content: bytes) -> Left:
    line, rest = content[: len(_FIRST_LINE)], memoryview(content)[len(_FIRST_LINE) :]
    if line != _FIRST_LINE:
        raise Damaged(f"it begins with {line!r} instead of {_FIRST_LINE!r}")
    checked = rest[_NUMBER.size :]
    if len(checked) < _NUMBER.size or _NUMBER.pack(zlib.crc32(checked)) != rest[: _NUMBER.size]:
        raise Damaged("its checksum is wrong")
    end = _NUMBER.size + _NUMBER.unpack_from(checked)[0]
    tokens, time_left = msgpack.unpackb(checked[_NUMBER.size : end])
    return Left(LeftSequence(tuple(tokens), math.inf if time_left is None else time_left), checked[end:])
