"""Reads journals: which records there are, in the order in which their requests came, and each when it is its turn.

Only times and places are kept in memory. A line without an end, as a killed server leaves it, and lines that are
damaged are counted and left out.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import orjson

from torchserve_py.features.journal.journal_files import SUFFIX
from torchserve_py.features.journal.journal_record import FORMAT, JournalRecord
from torchserve_py.features.journal.sealed_lines import KeyUnusable, SealBroken, opener
from ts.protocol.messages import OPENPI

#: The longest line that is read: a record with the largest bodies, sealed.
_LONGEST_LINE: Final = 256 << 20
#: What fields hold; a function that redacts may have changed that, or damage.
_KINDS: Final = {
    **dict.fromkeys(("model", "via", "method", "path", "route", "body_form", "answer", "answer_form"), str),
    **dict.fromkeys(("headers", "sequence_headers", "answer_headers"), dict),
    **dict.fromkeys(("part_bytes", "part_seconds"), list),
    **dict.fromkeys(("waiting_seconds", "running_seconds"), int | float),
    **dict.fromkeys(("sequence", "protocol", "content_type", "error", "cause"), str | None),
    **dict.fromkeys(("status", "step"), int | None),
}


class JournalUnreadable(Exception):
    """There is no journal, or it cannot be read; the message says why."""


class Place(NamedTuple):
    """Where a record is.

    Attributes:
        at: When its request came, in seconds since 1970.
        file: The number of the file.
        offset: Where in the file its line begins.
        lost: How many lines before it, in all files, are no records.
    """

    at: float
    file: int
    offset: int
    lost: int


class JournalReader:
    """The records of some files and folders. Raises JournalUnreadable."""

    def __init__(self, paths: Sequence[Path], key: bytes | None) -> None:
        self._files: list[BinaryIO] = []
        self._openers: list[Any] = []
        #: How many lines have no end, or are no records.
        self.incomplete = 0
        self.damaged = 0
        self.places: list[Place] = []
        #: The models that the records are of.
        self.models: set[str] = set()
        #: The last step of each episode of openpi's, which ends with its client's connection.
        self._episodes: dict[tuple[str, str | None], Place] = {}
        try:
            for file in _files_of(paths):
                self._add(file, key)
        except OSError as error:
            raise JournalUnreadable(f"{error.filename or 'A file'} cannot be read: {error.strerror}") from error
        except KeyUnusable as error:
            raise JournalUnreadable(str(error)) from error
        self.places.sort(key=attrgetter("at"))
        self._last_steps = frozenset(self._episodes.values())

    def ends_episode(self, place: Place) -> bool:
        """Return whether a record is the last one of an episode."""
        return place in self._last_steps

    def close(self) -> None:
        """Close the files."""
        for each in self._files:
            each.close()

    def read(self, place: Place) -> JournalRecord:
        """Return a record. Raises JournalUnreadable: it is not there any more."""
        file = self._files[place.file]
        file.seek(place.offset)
        try:
            return self._record(file.readline(_LONGEST_LINE), place.file)
        except (ValueError, OSError) as error:
            raise JournalUnreadable(f"{file.name} has changed while it was read") from error

    def _add(self, path: Path, key: bytes | None) -> None:
        file, number = path.open("rb"), len(self._files)
        self._files.append(file)
        first = file.readline(_LONGEST_LINE)
        self._openers.append(opener(first, key, path))
        offset = len(first) if self._openers[number] else 0
        file.seek(offset)
        opened = 0
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if not line.endswith(b"\n"):
                self.incomplete += 1
                break
            try:
                record = self._record(line, number)
                at, lost = datetime.fromisoformat(record["time"]).timestamp(), self.incomplete + self.damaged
                place = Place(at, number, offset, lost)
                self.places.append(place)
                self.models.add(record["model"])
                if record["protocol"] == OPENPI:
                    episode = record["model"], record["sequence"]
                    self._episodes[episode] = max(place, self._episodes.get(episode, place))
                opened += 1
            except SealBroken as error:
                if not opened:
                    raise KeyUnusable(f"{path} cannot be opened: {error}") from error
                self.damaged += 1
            except (ValueError, KeyError, TypeError):
                self.damaged += 1
            offset += len(line)

    def _record(self, line: bytes, file: int) -> JournalRecord:
        """Return the record in a line. Raises ValueError, KeyError: it is none; JournalUnreadable: a newer one."""
        if (open_line := self._openers[file]) is not None:
            line = open_line(line)
        record = orjson.loads(line)
        if isinstance(record, dict) and record.get("format", FORMAT) != FORMAT:
            raise JournalUnreadable(
                f"{self._files[file].name} has records of format {record['format']}, and this version of torchserve-py"
                f" reads format {FORMAT}: use the version that has written them, or a later one."
            )
        if not isinstance(record, dict) or not JournalRecord.__required_keys__ <= record.keys():
            raise ValueError("the line is no record")
        if not all(isinstance(record[name], kind) for name, kind in _KINDS.items()):
            raise ValueError("a field has a value of another kind")
        return cast("JournalRecord", record)


def _files_of(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(path.rglob(f"*{SUFFIX}"))
            if not found:
                raise JournalUnreadable(f"{path} holds no file of a journal (*{SUFFIX}).")
            yield from found
        elif path.exists():
            yield path
        else:
            raise JournalUnreadable(f"{path} is not there; name a file or a folder of a journal.")
