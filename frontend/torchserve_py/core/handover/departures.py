"""Servers on one folder tell each other which sequences they are about to leave, before their clients go elsewhere.

A server that stops writes a list, and writes it again each second until it has left all that it could. Another one
that gets a step of a listed sequence asks for it by a list of its own, and waits for its file instead of beginning the
sequence anew. If the file does not come, or another server has taken it, the sequence is lost there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from torchserve_py.core.handover.disk import Disk
from ts.protocol.regular_files import read_regular_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How the names of lists end: of a server that is leaving sequences, of one that has, and of what one waits for.
_LEAVING: Final = ".leaving"
_LEFT: Final = ".left"
_WANTED: Final = ".wanted"
#: For how long these count after they were written last (seconds).
_KEPT: Final = {_LEAVING: 3600.0, _LEFT: 30.0, _WANTED: 60.0}
#: After how many seconds a server has died whose list was not written again.
_DEAD: Final = 5.0
#: The most bytes of a list: that is a million sequences.
_MOST_BYTES: Final = 40_000_000
#: How long writing a list, and reading all, may take (seconds).
_LIMIT: Final = 2.0


class Expected(Enum):
    """What becomes of a sequence that is listed, and has no file."""

    coming = auto()
    gone = auto()


class _List(NamedTuple):
    """What a server leaves.

    Attributes:
        stamp: What changes when it is written again.
        seen_at: When it was seen first as it is, by `time.monotonic`.
        names: The names of sequences, by the name of their model, or the ids of those that are wanted.
    """

    stamp: tuple[int, int]
    seen_at: float
    names: Mapping[str, frozenset[str]]


class Departures:
    """The lists of all servers on a folder, and this one's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: For what is looked for all the time, which waits for no state that is read or written.
        self._disk = Disk()
        self._own = secrets.token_hex(8)
        self._lists: dict[str, _List] = {}

    async def look(self, then: Callable[[], T]) -> T:
        """Read the lists that are new, and return what ``then`` returns after that, which blocks. Raises OSError."""

        def look() -> tuple[dict[str, _List], T]:
            return _read_all(self._folder, self._own, self._lists), then()

        self._lists, found = await self._disk.run(look, _LIMIT)
        return found

    def expected(self, model: str, name: str) -> Expected | None:
        """Return what becomes of a sequence that had no file after the last look; None if it is in no list."""
        found: Expected | None = None
        for path, each in self._lists.items():
            if not path.endswith(_WANTED) and name in each.names.get(model, ()):
                if path.endswith(_LEAVING) and time.monotonic() - each.seen_at < _DEAD:
                    return Expected.coming
                found = Expected.gone
        return found

    @property
    def any(self) -> bool:
        """Whether there were lists at the last look."""
        return bool(self._lists)

    async def ask_for(self, model: str, sequence_ids: Iterable[str]) -> None:
        """Ask the servers that are leaving these sequences for them first; none asks for no more. Raises OSError."""
        path = self._folder / f"{self._own}-{model}{_WANTED}"
        await self._disk.run(partial(_ask, path, model, list(sequence_ids)), _LIMIT)

    async def wanted(self) -> Iterable[tuple[str, str]]:
        """Return what others ask for: the name of the model, and the id, of each sequence. Raises OSError."""
        await self.look(lambda: None)
        lists = [each.names for path, each in self._lists.items() if path.endswith(_WANTED)]
        return [(model, each) for names in lists for model, ids in names.items() for each in ids]

    async def announce(self, names: Mapping[str, list[str]], *, has_left: bool = False) -> None:
        """Write what this server leaves, by the names of models, or in the end what it has left. Raises OSError."""
        await self._disk.run(partial(_write, self._folder, self._own, json.dumps(names), has_left=has_left), _LIMIT)


# What follows blocks.


def _read_all(folder: Path, own: str, known: Mapping[str, _List]) -> dict[str, _List]:
    """Return the lists of other servers, by the names of their files; remove those that count no more."""
    lists: dict[str, _List] = {}
    for path in folder.glob("[!.]*"):
        kept = _KEPT.get(path.suffix)
        if kept is None or path.stem.startswith(own):
            continue
        with contextlib.suppress(OSError):  # it is gone, or cannot be read: the others count all the same
            about = path.stat()
            if about.st_mtime < time.time() - kept:
                path.unlink()
                continue
            stamp = about.st_mtime_ns, about.st_ino
            if path.name in known and known[path.name].stamp == stamp:
                lists[path.name] = known[path.name]
                continue
            names: dict[str, frozenset[str]] = {}
            try:
                read = json.loads(read_regular_text(path, _MOST_BYTES, follow=False))
                names = {model: frozenset(each) for model, each in read.items()}
            except FileNotFoundError:
                raise
            except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
                logger.warning("Which sequences a server leaves cannot be read from %s: %s", path, error)
            lists[path.name] = _List(stamp, time.monotonic(), names)
    return lists


def _ask(path: Path, model: str, sequence_ids: list[str]) -> None:
    if sequence_ids:
        _replace(path, json.dumps({model: sequence_ids}))
    else:
        path.unlink(missing_ok=True)


def _write(folder: Path, own: str, text: str, *, has_left: bool) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(folder / f"{own}{_LEFT if has_left else _LEAVING}", text)
    if has_left:
        (folder / f"{own}{_LEAVING}").unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Write a file that appears whole, and need not outlive the machine: it is not flushed to the disk."""
    partial_path = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open(os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        partial_path.replace(path)
    except OSError:
        partial_path.unlink(missing_ok=True)
        raise
