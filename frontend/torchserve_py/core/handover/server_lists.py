"""The lists in which servers on a folder tell each other which sequences in memory they have, and ask for others.

Each server appends to a list of its own: `+` and the name of a sequence before it begins that or takes its file, `-`
when it has it no more, and `!` when that is lost or cannot be left to others. It changes the time of the list each
second, to show that it lives. So a sequence that is not over is in a file, or in the list of the server that has it:
where it changes hands, for a moment in both. What a server waits for is in a second file, which is replaced.

While the folder does not work, or without what was in it, two servers may begin one sequence. Once each sees that the
other one has it, too, and not only for the moment in which it changes hands, the one whose list has the greater name
gives it up.

All of this blocks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.core.handover.storage import (
    DEAD,
    HAS,
    KEPT,
    LACKS,
    LOST,
    SIGN_INTERVAL,
    WANTED_KEPT,
    Found,
    Place,
    Seen,
    Wanted,
)
from ts.protocol.boot_clock import boot_time
from ts.protocol.regular_files import open_regular, read_regular_text

logger = logging.getLogger(__name__)

#: How the names end of lists, and of what servers wait for.
_OPEN: Final = ".open"
_WANTED: Final = ".wanted"
#: For how long these count after they were written last, by the clock of the folder (seconds).
_KEPT: Final = {_OPEN: KEPT, _WANTED: WANTED_KEPT}
#: After how many signs of life two servers have a sequence that both list: it changes hands between two of them.
_TWICE_SIGNS: Final = 3
#: The most bytes of a list: that is a million sequences.
_MOST_BYTES: Final = 80_000_000
#: A list is written anew once it has this many lines more than twice as many as it needs.
_SPARE_LINES: Final = 1_000

#: The length of the first line of a list.
_HEAD: Final = 16


@dataclass(slots=True)
class _List:
    """The list of another server.

    Attributes:
        head: Its first line, which is another one when it was written anew.
        stamp: What changes when its server shows that it lives.
        heard_at: When that was last seen, by `time.monotonic`.
        end: Up to which byte it was read.
        signs: How often that was seen.
        marks: What it says, by the names of sequences.
        news: Of which it has said since the last look that its server has them.
    """

    head: bytes
    stamp: tuple[int, int]
    heard_at: float
    signs: int = 0
    end: int = _HEAD + 1
    marks: dict[str, str] = field(default_factory=dict)
    news: list[str] = field(default_factory=list)


class ServerLists:
    """Those of all servers on a folder.

    Args:
        files: Returns the files of those of these sequences that have one.
    """

    def __init__(self, folder: Path, files: Callable[[Collection[str]], Mapping[str, Found]]) -> None:
        self._folder, self._files = folder, files
        name = secrets.token_hex(8)
        self._own, self._own_wanted = folder / f"{name}{_OPEN}", folder / f"{name}{_WANTED}"
        #: What the own list says, whether its file does, with how many lines, and when that was written.
        self._marks: dict[str, str] = {}
        self._is_whole, self._lines, self._written_at = False, 0, 0.0
        #: The time of the folder when it was: clocks of machines differ.
        self._folder_time = 0.0
        self._asks_for: list[Wanted] = []
        self._others: dict[str, _List] = {}
        #: Sequences that are in the own list, too, and in which other one: up to which of its signs that is no matter.
        self._twice: dict[tuple[str, str], int] = {}
        self._read_at = 0.0
        #: Names of lists that cannot be read, which is told once.
        self._unreadable = set[str]()

    def look(self, marks: dict[str, str], sought: Mapping[str, Wanted]) -> Seen:
        """Change marks in the own list; look for sequences, and what others want.

        What no other server has is listed as the own one before this returns. What others have is asked for.
        Raises OSError: the folder cannot be read.
        """
        files: Mapping[str, Found] = {}
        places: dict[str, Place] = {}
        if sought or time.monotonic() - self._read_at >= SIGN_INTERVAL:
            self._read_lists()
        if sought:
            files = self._files(sought)
            places = {name: Place.left if name in files else self.place(name) for name in sought}
        silent_since = self._folder_time if self._is_whole else 0.0
        written_at = self._written_at
        problem = self._tell(marks | _own(places))
        usurped = self._yielded()
        if silent_since and boot_time() - written_at > DEAD:  # it was frozen, perhaps just now
            usurped += self._usurped(silent_since)
        problem = self._tell(dict.fromkeys(usurped, LACKS)) or problem
        if new := [name for name, place in places.items() if place in (Place.nowhere, Place.lost)]:
            # It may have been taken by a server whose list was read before, or be begun by one at this very moment: of
            # two servers, the one that lists it last sees the other, and gives way.
            self._read_lists()
            places |= {name: self.place(name) for name in new}
            problem = self._tell(_own(places)) or problem
        try:
            self._ask([sought[name] for name, place in places.items() if place is Place.elsewhere])
        except OSError as error:
            problem = error
        return Seen(places, files, self._read_wanted(), usurped, problem)

    def names(self, name: str) -> bool:
        """Whether the own list names a sequence, or is to do so once it can be written."""
        return name in self._marks

    def place(self, name: str) -> Place:
        """Return where a sequence is that has no file, as far as this has read."""
        place = Place.nowhere
        for other in self._others.values():
            if (mark := other.marks.get(name)) is not None:
                if mark == HAS and self._lives(other):
                    return Place.elsewhere
                place = Place.lost
        return place

    def _lives(self, other: _List) -> bool:
        return self._read_at - other.heard_at < DEAD

    def _usurped(self, silent_since: float) -> list[str]:
        """Return what others have, which have taken this server for dead since a moment of the folder's time."""
        self._read_lists()
        # A list that was not written since is that of a server which died before: it has begun nothing anew.
        alive = [each for each in self._others.values() if self._lives(each) and each.stamp[0] > silent_since * 1e9]
        others = [each.marks for each in alive]
        own = [name for name, mark in self._marks.items() if mark == HAS]
        return [
            name for name in own if any(marks.get(name) == HAS for marks in others) or self._is_left(name, silent_since)
        ]

    def _is_left(self, name: str, silent_since: float) -> bool:
        """Whether another server has left a sequence which it could begin because this one was taken for dead."""
        try:
            return (self._folder.parent / name).stat().st_mtime > silent_since + DEAD
        except OSError:
            return False

    def _yielded(self) -> list[str]:
        """Return what another server has, too, to which this one leaves it."""
        yielded = []
        for (name, other_name), signs in list(self._twice.items()):
            other = self._others.get(other_name)
            if other is None or {self._marks.get(name), other.marks.get(name)} != {HAS}:
                del self._twice[name, other_name]
            elif other.signs >= signs and self._own.name > other_name:
                yielded.append(name)
            elif other.signs >= signs:  # perhaps that cannot read the own list, which may be damaged
                self._twice[name, other_name] = other.signs + _TWICE_SIGNS
                self._is_whole = False
        return yielded

    def _note_twice(self, name: str, other_name: str, other: _List) -> None:
        if self._marks.get(name) == HAS == other.marks.get(name):
            self._twice.setdefault((name, other_name), other.signs + _TWICE_SIGNS)

    def end(self, lost: Iterable[str]) -> None:
        """Say that this server has ended, with which these sequences are lost. Raises OSError."""
        self._ask([])
        self._marks = dict.fromkeys(lost, LOST)
        if self._marks:
            self._write_all()
        else:
            self._own.unlink(missing_ok=True)

    def _tell(self, marks: dict[str, str]) -> OSError | None:
        """Change marks in the own list, or show that this server lives; return why it could not be written."""
        try:
            self._write({name: mark for name, mark in marks.items() if self._marks.get(name, LACKS) != mark})
        except OSError as error:
            return error
        return None

    def _write(self, marks: Mapping[str, str]) -> None:
        """Change the own list, or show that this server lives."""
        for name, mark in marks.items():
            if mark == LACKS:
                self._marks.pop(name, None)
            else:
                self._marks[name] = mark
                for other_name, other in self._others.items():
                    self._note_twice(name, other_name, other)
        self._lines += len(marks)
        is_whole, self._is_whole = self._is_whole, False  # until it is written
        if not is_whole or self._lines > 2 * len(self._marks) + _SPARE_LINES:
            self._write_all()
        elif marks or boot_time() - self._written_at >= SIGN_INTERVAL:
            with open(os.open(self._own, os.O_WRONLY | os.O_APPEND), "w", encoding="ascii") as file:
                file.write(_lines_of(marks))
            os.utime(self._own)
            self._is_written()
        self._is_whole = True

    def _write_all(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._own, f"{secrets.token_hex(_HEAD // 2)}\n{_lines_of(self._marks)}", flushed=False)
        self._lines = len(self._marks)
        self._is_written()

    def _is_written(self) -> None:
        self._written_at, self._folder_time = boot_time(), self._own.stat().st_mtime

    def _ask(self, wanted: list[Wanted]) -> None:
        if wanted == self._asks_for:
            return
        self._asks_for = wanted
        if wanted:
            write_atomically(self._own_wanted, json.dumps(wanted), flushed=False)
        else:
            self._own_wanted.unlink(missing_ok=True)

    def _paths(self, ending: str) -> Iterable[Path]:
        """Return the files of other servers, except those that count no more, which are removed."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - ten times as fast
        except FileNotFoundError:  # it is made with the own list
            self._is_whole, names = False, []
        for name in names:
            path = self._folder / name
            if name.startswith(".") or not name.endswith(ending) or path in (self._own, self._own_wanted):
                continue
            with contextlib.suppress(OSError):  # it is gone
                if path.stat().st_mtime < self._folder_time - _KEPT[ending]:
                    path.unlink()
                else:
                    yield path

    def _read_lists(self) -> None:
        now = time.monotonic()
        gap, self._read_at = now - self._read_at, now
        lists: dict[str, _List] = {}
        for path in self._paths(_OPEN):
            known = self._others.get(path.name)
            if known is not None and gap > 2 * SIGN_INTERVAL:  # nobody has listened, so nobody was silent
                known.heard_at += gap
            try:
                other = lists[path.name] = _read_list(path, known, now)
                for name in other.news:
                    self._note_twice(name, path.name, other)
                other.news.clear()
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                self._warn(path, error)
        self._others = lists

    def _read_wanted(self) -> list[Wanted]:
        wanted: list[Wanted] = []
        for path in self._paths(_WANTED):
            try:
                wanted += [Wanted(*each) for each in json.loads(read_regular_text(path, _MOST_BYTES, follow=False))]
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, RecursionError) as error:
                self._warn(path, error)
        return [each for each in wanted if isinstance(each.model, str) and isinstance(each.sequence_id, str)]

    def _warn(self, path: Path, error: Exception) -> None:
        if path.name not in self._unreadable:
            self._unreadable.add(path.name)
            logger.warning("What another server says of its sequences in memory cannot be read: %s: %s", path, error)


def _read_list(path: Path, known: _List | None, now: float) -> _List:
    """Return a list, of which some may be known. Raises OSError; ValueError: it is too large."""
    with open(open_regular(path, follow=False), "rb") as file:  # a client of NFS asks its server again
        about = os.fstat(file.fileno())
        if about.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes, the most that is read")
        stamp = about.st_mtime_ns, about.st_size
        head = file.read(_HEAD + 1)
        if known is None or known.head != head:
            known = _List(head, stamp, now, 0 if known is None else known.signs + 1)
        elif known.stamp != stamp:
            known.stamp, known.heard_at, known.signs = stamp, now, known.signs + 1
        if about.st_size > known.end:
            file.seek(known.end)
            read = file.read(about.st_size - known.end)
            whole = read[: read.rfind(b"\n") + 1]  # the rest is being written
            known.end += len(whole)
            for line in whole.decode("ascii", "replace").split("\n"):
                mark, name = line[:1], line[1:]
                if mark == LACKS:
                    known.marks.pop(name, None)
                elif mark in (HAS, LOST):
                    known.marks[name] = mark
                    if mark == HAS:
                        known.news.append(name)
    return known


def _own(places: Mapping[str, Place]) -> dict[str, str]:
    """Return what the own list says of sequences that are sought: this server has those that no other one has.

    One that is lost may begin anew.
    """
    return {name: LACKS if place is Place.elsewhere else HAS for name, place in places.items()}


def _lines_of(marks: Mapping[str, str]) -> str:
    return "".join([f"{mark}{name}\n" for name, mark in marks.items()])
