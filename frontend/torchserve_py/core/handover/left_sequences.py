"""Sequences in memory that a server leaves to the next one when it stops: each in a file, which one server takes.

The next one is a server that starts later, and finds the files when it does, or, where servers share the folder, any
other one: that looks for a file when a sequence opens, and waits for one that is to come (`departures`).

The folder of a model and the file of a sequence have digests as names, since names and ids may be long, or ``..``. A
file has a line that names the format, the CRC-32 of what follows, what is known of the sequence as msgpack behind its
length (`_Known`), and what its worker gave (`ts.sequences.handover`). None of it is code.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgpack

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.handover.departures import Departures, Expected
from torchserve_py.core.handover.disk import Disk
from torchserve_py.core.scheduling.sequence_source import LeftSequence
from ts.protocol.regular_files import open_regular

logger = logging.getLogger(__name__)

_FIRST_LINE: Final = b"torchserve-py left sequence 1\n"
_NUMBER: Final = struct.Struct(">I")
#: For how long a sequence is kept that is never idle for too long (seconds).
_LONGEST: Final = 30 * 86_400.0
#: After how long a file is nobody's that is being written, or was taken by a server that died then (seconds).
_ABANDONED: Final = 3600.0
#: How long looking at the folder, and reading, writing or removing files, may take (seconds).
_LIMIT: Final = 10.0
#: How often files are looked for that are to come (seconds).
_SEEK_INTERVAL: Final = 0.02
#: How long a step waits for a sequence that is to come (seconds).
_WAIT_LIMIT: Final = 30.0
#: How often other servers are told which sequences are about to be left, and it is looked which they want first
#: (seconds).
_TELL_INTERVAL: Final = 1.0
_WANTED_INTERVAL: Final = 0.05
#: The folder of the lists of those.
_LISTS: Final = "servers"


#: Returns the open sequences that have states, as pairs of the name of a model and an id.
OpenSequences: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
#: Begins to leave some of these, as far as they are open and rest.
Leave: TypeAlias = Callable[[Iterable[tuple[str, str]]], None]


class Damaged(ValueError):
    """A file cannot be read; the message says why."""


class _Known(NamedTuple):
    """What stands before the state.

    Attributes:
        version: The version that the sequence is of.
        ends_at: When it has been idle for too long, in seconds since 1970.
        tokens: Those of its jobs that were answered.
        time_left: Seconds until it reaches its time limit, None if it has none.
    """

    version: str
    ends_at: float
    tokens: tuple[str, ...]
    time_left: float | None


class Left(NamedTuple):
    """A sequence that another server has left: what its scheduler and its worker knew of it.

    Attributes:
        is_over: Whether it has been idle for too long.
    """

    sequence: LeftSequence
    given: memoryview
    is_over: bool


class _Found(NamedTuple):
    """A file of a sequence."""

    version: str
    path: Path


class HandoverFolder:
    """The sequences of all models that servers leave in a folder.

    Args:
        is_shared: Whether other servers that run have this folder, too.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        self._folder = folder
        self._disk = Disk()
        self._departures = Departures(folder / _LISTS) if is_shared else None
        #: What earlier servers have left, by the name of the folder of a model.
        self._found: dict[str, dict[str, _Found]] = {}
        self._left: dict[str, LeftSequences] = {}
        self._announcing: asyncio.Task[None] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other servers have to be told what this one is about to leave."""
        return self._departures is not None

    async def look(self) -> None:
        """Note which sequences there are; remove those that are over."""
        try:
            found = await self._disk.run(partial(_files_in, self._folder), _LIMIT)
            if not self.is_shared:  # else others may take them
                self._found = found
        except OSError as error:
            logger.warning("What an earlier server has left of sequences in %s is lost: %s", self._folder, error)

    def of(self, model: str) -> LeftSequences:
        """Return those of a model."""
        if (left := self._left.get(model)) is None:
            name = name_of(model)
            files = self._found.pop(name, {})
            left = self._left[model] = LeftSequences(self._folder / name, self._disk, files, self._departures)
        return left

    async def settle(self) -> None:
        """Wait until no sequences change hands within this process."""
        for left in self._left.values():
            async with left.changing_hands:
                pass

    async def announce(self, open_sequences: OpenSequences, leave: Leave) -> None:
        """Tell servers on this folder which sequences this one is about to leave, from now on until `has_left`.

        Those that others ask for are left at once.
        """
        if self._departures is None or self._announcing is not None or not self._left:
            return
        for left in self._left.values():
            left.is_leaving = True
        await self._tell(self._departures, open_sequences)
        announcing = self._announce(self._departures, open_sequences, leave)
        self._announcing = in_background(announcing, "telling which sequences are left")

    async def _announce(self, departures: Departures, open_sequences: OpenSequences, leave: Leave) -> None:
        while True:
            until = time.monotonic() + _TELL_INTERVAL
            while time.monotonic() < until:
                await asyncio.sleep(_WANTED_INTERVAL)
                models = {left.name: model for model, left in self._left.items()}
                with contextlib.suppress(OSError):  # which the next list tells
                    wanted = await departures.wanted()
                    leave((models[name], each) for name, each in wanted if name in models)
            await self._tell(departures, open_sequences)

    async def _tell(
        self,
        departures: Departures,
        open_sequences: OpenSequences,
        *,
        has_left: bool = False,
    ) -> None:
        names = {left.name: [*left.gone] for left in self._left.values()}
        for model, sequence_id in open_sequences():
            names[name_of(model)].append(name_of(sequence_id))
        try:
            await departures.announce(names, has_left=has_left)
        except OSError as error:
            logger.warning("Other servers cannot be told which sequences in memory this one leaves: %s", error)

    async def has_left(self, open_sequences: OpenSequences) -> None:
        """Tell that no more will come; what is still open is lost. Wait until files are gone that are to go."""
        if self._departures is not None and self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait([self._announcing])
            await self._tell(self._departures, open_sequences, has_left=True)
        await asyncio.gather(*(left.removed() for left in self._left.values()))


class LeftSequences:
    """Those of one model, by their ids.

    Args:
        folder: The one of the model.
        disk: What this runs on that blocks.
        files: Those that earlier servers have left, by the names of their sequences.
        departures: What other servers on the folder are about to leave; None if there are none.
    """

    def __init__(
        self, folder: Path, disk: Disk, files: dict[str, _Found], departures: Departures | None = None
    ) -> None:
        self._folder, self._disk, self._files, self._departures = folder, disk, files, departures
        #: Whether files may come that this does not know of.
        self.is_shared = departures is not None
        #: What the model is called in file names.
        self.name = folder.name
        #: Whether this server stops, and which sequences it has left or lost since it began to, by their names.
        self.is_leaving = False
        self.gone = set[str]()
        #: The names of those that it has taken from others: that their files are gone means nothing.
        self._taken = set[str]()
        #: Held while they change hands within this process, as they do when a version is loaded again.
        self.changing_hands = asyncio.Lock()
        #: By sequence, the latest attempt to give it to a worker.
        self.fetching: dict[str, asyncio.Task[None]] = {}
        #: The version of each that is about to be left, by the name of its sequence, and whether it is lost after all.
        self._coming: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        #: The ids of those that are looked for, and whether they are lost, by their names; set when there is one more.
        self._sought: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        self._one_more = asyncio.Event()
        #: Whether the last look has failed.
        self._is_blind = False
        #: The names of those that a server which leaves them was asked for.
        self._asked_for = set[str]()
        #: Files that are being removed.
        self._removing = set[asyncio.Task[None]]()

    async def find(self, sequence_id: str) -> bool:
        """Look for the file of a sequence that another server may have left, and wait for one that is to come.

        Return whether the sequence is lost. A disk that gives no answer has no files.
        """
        name = name_of(sequence_id)
        found = self._files.get(name)
        if self._departures is None or name in self._coming or (found is not None and found.path.name != name):
            return False  # no other server has it
        if (sought := self._sought.get(name)) is None:
            if not self._sought:
                in_background(self._seek(self._departures), "looking for sequences that other servers have left")
            sought = self._sought[name] = sequence_id, asyncio.get_running_loop().create_future()
            self._one_more.set()
        try:
            async with asyncio.timeout(_WAIT_LIMIT):
                return await asyncio.shield(sought[1])
        except TimeoutError:
            self._sought.pop(name, None)
            return True

    async def _seek(self, departures: Departures) -> None:
        """Look for all that are sought, together, until there are none."""
        try:
            while self._sought:
                self._one_more.clear()
                await self._seek_once(departures)
                if self._sought:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_SEEK_INTERVAL):
                            await self._one_more.wait()
        finally:  # steps wait for it
            while self._sought:
                self._sought.popitem()[1][1].set_result(False)

    async def _seek_once(self, departures: Departures) -> None:
        names, found, is_known = [*self._sought], dict[str, _Found](), True
        try:
            found = await departures.look(partial(_files_among, self._folder, names))
        except OSError as error:
            if not self._is_blind:
                logger.warning("What other servers have left of sequences cannot be looked for: %s", error)
            is_known = False
        self._is_blind = not is_known
        if not departures.any:
            self._taken.clear()
        for name in names:
            expected = None
            self._files.pop(name, None)
            if name in found:
                self._files[name] = found[name]
            elif name in self.gone:
                expected = Expected.gone
            elif name not in self._taken:
                expected = departures.expected(self.name, name)
            if name in self._sought and (expected is not Expected.coming or not is_known):
                self._sought.pop(name)[1].set_result(expected is not None)
        if self._asked_for != (coming := {name for name in names if name in self._sought}):
            self._asked_for = coming
            with contextlib.suppress(OSError):  # they come later then
                await departures.ask_for(self.name, [self._sought[name][0] for name in coming])

    def version_of(self, sequence_id: str) -> str | None:
        """Return the version of a sequence that is there, or is to come; None if there is none."""
        if not (self._files or self._coming):
            return None
        name = name_of(sequence_id)
        found = self._files.get(name) or self._coming.get(name)
        return None if found is None else found[0]

    def expect(self, version: str, sequence_ids: Iterable[str]) -> None:
        """Let these sequences count from now on, before they come: each will be written or `absent`."""
        loop = asyncio.get_running_loop()
        self._coming.update({name_of(each): (version, loop.create_future()) for each in sequence_ids})

    async def wait_for(self, sequence_id: str) -> bool:
        """Wait until a sequence that is expected has come, or is not to come; return whether it is lost then."""
        coming = self._coming.get(name_of(sequence_id))
        return coming is not None and await asyncio.shield(coming[1])

    def has_come(self, version: str, sequence_id: str) -> None:
        """Let others of this process have a sequence that was written, and given up."""
        name = name_of(sequence_id)
        self._files[name] = _Found(version, self._folder / name)
        self._is_gone(name)
        self._came(name, is_lost=False)

    def absent(self, sequence_id: str, *, is_lost: bool) -> None:
        """Note that a sequence which was expected is over, or has nothing to be left."""
        name = name_of(sequence_id)
        if is_lost:
            self._is_gone(name)
        self._came(name, is_lost=is_lost)

    def _is_gone(self, name: str) -> None:
        if self.is_leaving:
            self.gone.add(name)

    def lose_expected(self) -> None:
        """Note that all that is still expected is lost."""
        for name in list(self._coming):
            self._came(name, is_lost=True)

    def _came(self, name: str, *, is_lost: bool) -> None:
        if (coming := self._coming.pop(name, None)) is not None:
            coming[1].set_result(is_lost)

    async def write(
        self, version: str, sequence_id: str, left: LeftSequence, rest: float, given: Iterable[bytes], limit: float
    ) -> None:
        """Write a sequence that may be idle for ``rest`` seconds more; the next server may have it from now on.

        Raises OSError: it was not written, and will not be.
        """
        time_left = None if math.isinf(left.time_left) else left.time_left
        known = _Known(version, time.time() + min(rest, _LONGEST), left.tokens, time_left)
        decided = threading.Lock()  # held by who has decided whether the file is to count: its thread, or this
        limit = min(limit, _LIMIT)
        write = partial(
            _write, self._folder / name_of(sequence_id), known, given, lambda: decided.acquire(blocking=False)
        )
        try:
            await self._disk.run(write, limit)
        except TimeoutError:
            if decided.acquire(blocking=False):
                raise
            # It is being given its name at this moment, and nothing can hold that up: so it counts.

    def withdraw(self, sequence_id: str) -> None:
        """Remove a sequence that was written, and is over."""
        self._remove(lambda: [self._folder / name_of(sequence_id)])

    async def read(self, sequence_id: str) -> Left | None:
        """Take a sequence, which no other server gets from now on; None if another one has it, or it has not come.

        It can be read again until this one has called `forget`. Raises OSError; Damaged.
        """
        name = name_of(sequence_id)
        if (found := self._files.get(name)) is None:
            return None
        path, taken = found.path, found.path
        if path.name == name:
            taken = path.with_name(f".taken-{name}-{secrets.token_hex(8)}")
            self._files[name] = _Found(found.version, taken)
        return await self._disk.run(partial(_take, path, taken), _LIMIT)

    def forget(self, sequence_id: str) -> None:
        """Remove a sequence, which has a worker now, or is of no use."""
        name = name_of(sequence_id)
        if (found := self._files.pop(name, None)) is not None:
            self._taken.add(name)
            self.gone.discard(name)
            self._remove(lambda: [found.path])

    def drop(self) -> None:
        """Remove all: no version of the model is served any more."""
        self._files.clear()
        self._remove(lambda: self._folder.glob("*"))

    def _remove(self, paths: Callable[[], Iterable[Path]]) -> None:
        task = in_background(self._unlink(paths), "removing left sequences")
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _unlink(self, paths: Callable[[], Iterable[Path]]) -> None:
        with contextlib.suppress(TimeoutError):
            await self._disk.run(partial(_unlink, paths), _LIMIT)

    async def removed(self) -> None:
        """Wait until the files are gone that were to be removed."""
        if self._removing:
            await asyncio.wait(self._removing)


def name_of(text: str) -> str:
    """Return what a model or a sequence is called in file names."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# What follows blocks.


def _files_in(folder: Path) -> dict[str, dict[str, _Found]]:
    """Return the files of sequences that are not over, by their names, by the folders of their models.

    Those that are over are removed, and what servers that died have left behind.
    """
    now = time.time()
    found: dict[str, dict[str, _Found]] = {}
    for path in folder.glob("*/*"):
        if path.parent.name == _LISTS:
            continue
        with contextlib.suppress(OSError):  # another server takes it, or it cannot be removed
            if path.name.startswith("."):
                if path.stat().st_mtime < now - _ABANDONED:
                    path.unlink()
            elif (known := _known_in(path)) is not None and known.ends_at <= now:
                path.unlink()
            else:  # of a damaged one the version does not matter: whoever asks for the sequence learns that it is lost
                version = "" if known is None else known.version
                found.setdefault(path.parent.name, {})[path.name] = _Found(version, path)
    return found


def _files_among(folder: Path, names: Iterable[str]) -> dict[str, _Found]:
    """Return the files of those of these sequences that have one."""
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))  # a client of NFS asks its server again
    except FileNotFoundError:
        return {}
    found: dict[str, _Found] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            known = _known_in(folder / name)
            found[name] = _Found("" if known is None else known.version, folder / name)
    return found


def _known_in(path: Path) -> _Known | None:
    """Return what a file says before the state; None if it cannot be read. Raises FileNotFoundError."""
    try:
        with open(open_regular(path), "rb") as file:
            start = file.read(len(_FIRST_LINE) + 2 * _NUMBER.size)
            if not start.startswith(_FIRST_LINE) or len(start) < len(_FIRST_LINE) + 2 * _NUMBER.size:
                return None
            known = _Known(*msgpack.unpackb(file.read(*_NUMBER.unpack(start[-_NUMBER.size :]))))
            return known if isinstance(known.version, str) and isinstance(known.ends_at, float) else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        return None


def _write(path: Path, known: _Known, given: Iterable[bytes], counts: Callable[[], bool]) -> None:
    """Write a file, which appears whole if it ``counts`` by then."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    packed = msgpack.packb(known)
    parts = [_NUMBER.pack(len(packed)), packed, *given]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    partial_path = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open(os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines([_FIRST_LINE, _NUMBER.pack(checksum), *parts])
        if counts():
            partial_path.rename(path)
            return
    except OSError:  # the disk may be full
        partial_path.unlink(missing_ok=True)
        raise
    partial_path.unlink(missing_ok=True)


def _take(path: Path, taken: Path) -> Left | None:
    """Read a file after it was given a name at which no other server looks."""
    if path != taken:
        try:
            path.rename(taken)
        except FileNotFoundError:
            return None
        os.utime(taken)
    with open(open_regular(taken), "rb") as file:
        return _read(file.read())


def _read(content: bytes) -> Left:
    line, rest = content[: len(_FIRST_LINE)], memoryview(content)[len(_FIRST_LINE) :]
    if line != _FIRST_LINE:
        raise Damaged(f"it begins with {line!r} instead of {_FIRST_LINE!r}")
    checked = rest[_NUMBER.size :]
    if len(checked) < _NUMBER.size or _NUMBER.pack(zlib.crc32(checked)) != rest[: _NUMBER.size]:
        raise Damaged("its checksum is wrong")
    end = _NUMBER.size + _NUMBER.unpack_from(checked)[0]
    known = _Known(*msgpack.unpackb(checked[_NUMBER.size : end]))
    time_left = math.inf if known.time_left is None else known.time_left
    return Left(LeftSequence(tuple(known.tokens), time_left), checked[end:], known.ends_at <= time.time())


def _unlink(paths: Callable[[], Iterable[Path]]) -> None:
    for path in paths():
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
