"""Sequences in memory that a server leaves to the next one when it stops: each in a file, which one server takes.

The next one is a server that starts later, and finds the files when it does, or, where servers share the folder, any
other one: that looks for a file when a sequence opens, and asks the server that has the sequence (`whereabouts`).

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
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgpack

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.handover.disk import Disk
from torchserve_py.core.handover.server_lists import Place, Wanted
from torchserve_py.core.handover.whereabouts import Whereabouts
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
#: The folder of the lists of servers.
_LISTS: Final = "servers"

#: Begins to leave some of these, as far as they are open and rest.
Leave: TypeAlias = Callable[[Iterable[tuple[str, str]]], None]


#: Whether a sequence is one of some, by the name of its model, and its id.
IsNamed: TypeAlias = Callable[[str, str], bool]


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
        version: The version that it is of.
        is_over: Whether it has been idle for too long.
    """

    version: str
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
        self._whereabouts = Whereabouts(folder / _LISTS, partial(_files_among, folder)) if is_shared else None
        #: What earlier servers have left, by the name of the folder of a model.
        self._found: dict[str, dict[str, _Found]] = {}
        self._left: dict[str, LeftSequences] = {}
        #: The names of models, by those of their folders.
        self._models: dict[str, str] = {}

    @property
    def is_shared(self) -> bool:
        """Whether other servers may have the sequences, and are to be told which this one has."""
        return self._whereabouts is not None

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
            left = self._left[model] = LeftSequences(self._folder / name, self._disk, files, self._whereabouts)
            self._models[name] = model
        return left

    async def settle(self) -> None:
        """Wait until no sequences change hands within this process."""
        for left in self._left.values():
            async with left.changing_hands:
                pass

    def share(self, is_open: Callable[[str, str], bool], leave: Leave, give_up: Callable[[IsNamed], None]) -> None:
        """Tell servers on this folder which sequences this one has, from now on until `has_left`.

        ``is_open`` tells whether a sequence of a model is open here. Those that others ask for are left to them, and
        those that they have, too, are given up.
        """
        if self._whereabouts is not None:
            self._whereabouts.start(
                partial(self._has, is_open),
                partial(self._leave, leave),
                lambda names: give_up(lambda model, sequence_id: f"{name_of(model)}/{name_of(sequence_id)}" in names),
            )

    def _has(self, is_open: Callable[[str, str], bool], wanted: Wanted) -> bool | None:
        model = self._models[wanted.model]
        is_fetched = wanted.sequence_id in self._left[model].fetching
        return None if is_fetched else is_open(model, wanted.sequence_id)

    def _leave(self, leave: Leave, wanted: Iterable[Wanted]) -> None:
        known = [each for each in wanted if each.model in self._models]
        for each in known:  # perhaps it is not open, although the list says so
            self._left[self._models[each.model]].changed(each.sequence_id)
        leave([(self._models[each.model], each.sequence_id) for each in known])

    async def has_left(self, open_sequences: Iterable[tuple[str, str]]) -> None:
        """Tell that no more will come; what is still open is lost. Wait until files are gone that are to go."""
        if self._whereabouts is not None:
            lost = [f"{name_of(model)}/{name_of(sequence_id)}" for model, sequence_id in open_sequences]
            with contextlib.suppress(OSError):  # they take this one for dead
                await self._whereabouts.end(lost)
        await asyncio.gather(*(left.removed() for left in self._left.values()))


class LeftSequences:
    """Those of one model, by their ids.

    Args:
        folder: The one of the model.
        disk: What this runs on that blocks.
        files: Those that earlier servers have left, by the names of their sequences.
        whereabouts: What other servers have on the folder; None if there are none.
    """

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        files: dict[str, _Found],
        whereabouts: Whereabouts[_Found] | None = None,
    ) -> None:
        self._folder, self._disk, self._files, self._whereabouts = folder, disk, files, whereabouts
        #: Whether other servers may have sequences, which this does not know of.
        self.is_shared = whereabouts is not None
        #: Held while they change hands within this process, as they do when a version is loaded again.
        self.changing_hands = asyncio.Lock()
        #: By sequence, the latest attempt to give it to a worker.
        self.fetching: dict[str, asyncio.Task[None]] = {}
        #: The version of each that is about to be left, by the name of its sequence, and whether it is lost after all.
        self._coming: dict[str, tuple[str, asyncio.Future[bool]]] = {}
        #: Files that are being removed.
        self._removing = set[asyncio.Task[None]]()

    async def find(self, sequence_id: str, limit: float) -> bool:
        """Look for the file of a sequence that another server may have left, or has, and is asked for then.

        Return whether the sequence is lost. A disk that gives no answer has no files. Raises TimeoutError: another
        server has it, and has not left it within ``limit`` seconds.
        """
        name = name_of(sequence_id)
        if self._whereabouts is None or name in self._coming or self.has_taken(sequence_id):
            return False  # no other server has it
        place, found = await self._whereabouts.seek(*self._named(sequence_id), limit)
        self._files.pop(name, None)
        if found is not None:
            self._files[name] = found
        return place is Place.lost

    def has_taken(self, sequence_id: str) -> bool:
        """Whether this server has taken the file of a sequence, which no worker has yet."""
        name = name_of(sequence_id)
        found = self._files.get(name)
        return found is not None and found.path.name != name

    def changed(self, sequence_id: str) -> None:
        """Note that a sequence may have been opened or closed here."""
        if self._whereabouts is not None:
            self._whereabouts.changed(*self._named(sequence_id))

    def keeps(self, sequence_id: str) -> None:
        """Note that a sequence which is open here cannot be left to others, for which it is lost."""
        if self._whereabouts is not None:
            self._whereabouts.keeps(*self._named(sequence_id))

    def _named(self, sequence_id: str) -> tuple[str, Wanted]:
        """Return the name of a sequence among those of all models, and how other servers are asked for it."""
        model = self._folder.name
        return f"{model}/{name_of(sequence_id)}", Wanted(model, sequence_id)

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
        self._came(name, is_lost=False)

    def absent(self, sequence_id: str, *, is_lost: bool) -> None:
        """Note that a sequence is over, or has nothing to be left."""
        if self._whereabouts is not None:
            (self._whereabouts.lost if is_lost else self._whereabouts.changed)(*self._named(sequence_id))
        if self._coming:
            self._came(name_of(sequence_id), is_lost=is_lost)

    def lose_expected(self) -> None:
        """Note that all that is still expected is lost."""
        for name in list(self._coming):
            self._came(name, is_lost=True)

    def _came(self, name: str, *, is_lost: bool) -> None:
        if (coming := self._coming.pop(name, None)) is not None:
            coming[1].set_result(is_lost)

    async def look_first(self) -> None:
        """Wait until it is known what others have begun anew, if this server was frozen."""
        if self._whereabouts is not None:
            await self._whereabouts.look_first()

    async def write(
        self, version: str, sequence_id: str, left: LeftSequence, rest: float, given: Iterable[bytes], limit: float
    ) -> None:
        """Write a sequence that may be idle for ``rest`` seconds more; the next server may have it from now on.

        Raises OSError: it was not written, and will not be, perhaps because this server was frozen at that moment.
        """
        time_left = None if math.isinf(left.time_left) else left.time_left
        known = _Known(version, time.time() + min(rest, _LONGEST), left.tokens, time_left)
        decided = threading.Lock()  # held by who has decided whether the file is to count: its thread, or this
        limit = min(limit, _LIMIT)

        def counts() -> bool:
            if self._whereabouts is not None and self._whereabouts.was_silent:
                raise OSError("other servers take this one for dead")
            return decided.acquire(blocking=False)

        write = partial(_write, self._folder / name_of(sequence_id), known, given, counts)
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

    async def put_back(self, sequence_id: str) -> None:
        """Let other servers have a sequence again that this one has read, and does not begin."""
        name = name_of(sequence_id)
        found = self._files.get(name)
        if self.is_shared and found is not None and found.path.name != name:
            with contextlib.suppress(OSError):  # then this one may read it again
                await self._disk.run(partial(found.path.rename, self._folder / name), _LIMIT)
                self._files[name] = _Found(found.version, self._folder / name)

    def forget(self, sequence_id: str) -> None:
        """Remove a sequence, which has a worker now, or is of no use."""
        name = name_of(sequence_id)
        if (found := self._files.pop(name, None)) is not None:
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


def _files_among(folder: Path, names: Collection[str]) -> dict[str, _Found]:
    """Return the files of those of these sequences that have one; a name is that of the model's folder, and its own."""
    found: dict[str, _Found] = {}
    for model in {name.partition("/")[0] for name in names}:
        with contextlib.suppress(FileNotFoundError):
            os.close(os.open(folder / model, os.O_RDONLY | os.O_DIRECTORY))  # a client of NFS asks its server again
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
    sequence = LeftSequence(tuple(known.tokens), time_left)
    return Left(known.version, sequence, checked[end:], known.ends_at <= time.time())


def _unlink(paths: Callable[[], Iterable[Path]]) -> None:
    for path in paths():
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
