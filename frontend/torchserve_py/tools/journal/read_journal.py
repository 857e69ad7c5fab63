"""Reads journals: which records there are, in the order in which their requests came, and each when it is its turn.

Only times and places are kept in memory. A line without an end, as a killed server leaves it, and lines that are
damaged are counted and left out. Of an encrypted file it is also counted what is missing between its lines.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import orjson

from torchserve_py.tools.journal.journal_files import SUFFIX
from torchserve_py.tools.journal.journal_record import FORMAT, JournalRecord
from torchserve_py.tools.journal.sealed_lines import KeyUnusable, LineOrder, SealBroken, SealedFile, sealed_file
from ts.protocol.messages import OPENPI
from ts.protocol.regular_files import open_regular

#: The longest line that is read: a record with the largest bodies, sealed.
_LONGEST_LINE: Final = 256 << 20
_MOST_SHOWN: Final = 20
#: How far ahead another machine's clock may be (seconds).
_CLOCKS_DIFFER: Final = 86_400.0
#: After so many lines of a file that the key does not open it is the wrong key.
_ENOUGH_BROKEN: Final = 1000


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | None)


_OR_NONE: Final = ("sequence", "sequence_generation", "protocol", "content_type", "error", "cause")
#: What fields hold; a function that redacts may have changed that, or damage, or somebody else.
_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("time", "model", "via", "method", "path", "route"), _is_text),
    **dict.fromkeys(("body_form", "answer", "answer_form"), _is_text),
    **dict.fromkeys(("headers", "sequence_headers", "answer_headers"), _is_texts),
    "part_bytes": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "part_seconds": lambda value: isinstance(value, list) and all(map(_is_time, value)),
    **dict.fromkeys(("waiting_seconds", "running_seconds"), _is_time),
    **dict.fromkeys((*_OR_NONE, "version", "request_id"), lambda value: isinstance(value, str | None)),
    **dict.fromkeys(("sequence_opens", "body_cut", "more_input", "failed", "answer_cut"), _is_flag),
    "status": lambda value: value is None or (_is_count(value) and value < 1000),
    "step": lambda value: value is None or _is_count(value),
}


class JournalUnreadable(Exception):
    """There is no journal, or it cannot be read; the message says why."""


class _OtherFormat(ValueError):
    """A record is of another format, which ``args[0]`` is."""


class RecordPlace(NamedTuple):
    """Where a record is.

    Attributes:
        at: When its request came, in seconds since 1970.
        file: The number of the file.
        offset: Where in the file its line begins.
        lost: How many lines before it, in all files, are missing or no records.
    """

    at: float
    file: int
    offset: int
    lost: int


class JournalReader:
    """The records of some files and folders. Raises JournalUnreadable."""

    def __init__(self, paths: Sequence[Path], key: bytes | None) -> None:
        self._files: list[BinaryIO] = []
        self._names: list[Path] = []
        self._seals: list[SealedFile | None] = []
        #: How many lines have no end, or are no records, and how many are missing in encrypted files.
        self.incomplete = 0
        self.damaged = 0
        self.missing = 0
        self.places: list[RecordPlace] = []
        #: The models that the records are of.
        self.models: set[str] = set()
        #: The last step of each episode of openpi's, which ends with its client's connection.
        self._episodes: dict[tuple[str, str | None], RecordPlace] = {}
        try:
            for file in _files_of(paths):
                self._add(file, key)
        except OSError as error:
            raise JournalUnreadable(f"{error.filename or 'A file'} cannot be read: {error.strerror}") from error
        except KeyUnusable as error:
            raise JournalUnreadable(str(error)) from error
        self.places.sort(key=attrgetter("at"))
        self._last_steps = frozenset(self._episodes.values())

    def ends_episode(self, place: RecordPlace) -> bool:
        """Return whether a record is the last one of an episode."""
        return place in self._last_steps

    def close(self) -> None:
        """Close the files."""
        for each in self._files:
            each.close()

    def read(self, place: RecordPlace) -> JournalRecord:
        """Return a record. Raises JournalUnreadable: it is not there any more."""
        file = self._files[place.file]
        file.seek(place.offset)
        try:
            line: bytes = self._opened(file.readline(_LONGEST_LINE), place.file)[1]
            record: JournalRecord = self._record(line)
        except (ValueError, OSError) as error:
            raise JournalUnreadable(f"{self._names[place.file]} has changed while it was read") from error
        return record

    def _add(self, path: Path, key: bytes | None) -> None:
        file, number = os.fdopen(open_regular(path), "rb"), len(self._files)
        if any(os.path.sameopenfile(file.fileno(), each.fileno()) for each in self._files):
            file.close()  # a file that is named twice, or is in a folder that is
            return
        self._files.append(file)
        self._names.append(path)
        first = file.readline(_LONGEST_LINE)
        seal = sealed_file(first, key, path)
        self._check_seal(seal, first, key, path)
        self._seals.append(seal)
        offset = len(first) if seal else 0
        file.seek(offset)
        opened, broken, order = 0, 0, LineOrder()
        while line := file.readline(_LONGEST_LINE):
            if not line.endswith(b"\n"):
                if not (more := _to_end_of_line(file)):
                    self.incomplete += 1
                    break
                self.damaged += 1
                offset += len(line) + more
                continue
            try:
                place_in_file, content = self._opened(line, number)
                self.missing += order.next(place_in_file)
                self._place(self._record(content), number, offset)
                opened += 1
            except SealBroken as error:
                broken += 1
                if not opened and broken >= _ENOUGH_BROKEN:
                    raise KeyUnusable(f"{path} cannot be opened: {error}") from error
                order.unreadable()
                self.damaged += 1
            except _OtherFormat as error:
                if not opened:
                    raise JournalUnreadable(_other_format(path, error.args[0])) from error
                self.damaged += 1
            except (ValueError, TypeError, OverflowError):
                self.damaged += 1
            offset += len(line)
        if broken and not opened:
            raise KeyUnusable(f"{path} cannot be opened: it was sealed with another key, or changed")

    def _check_seal(self, seal: SealedFile | None, first: bytes, key: bytes | None, path: Path) -> None:
        """Check that with a key only sealed lines count, and those of each file once. Raises JournalUnreadable."""
        if seal is None and key is not None and first.endswith(b"\n"):
            raise JournalUnreadable(f"{path} is not encrypted; replay it without --key-file, and by itself")
        for other, name in zip(self._seals, self._names, strict=False):
            if seal is not None and other is not None and other.salt == seal.salt:
                raise JournalUnreadable(f"{path} is a copy of {name}; name one of them")

    def _place(self, record: JournalRecord, file: int, offset: int) -> None:
        """Note where a record is. Raises ValueError, OverflowError: its time is none, or has not come yet."""
        at = datetime.fromisoformat(record["time"]).timestamp()
        if at > time.time() + _CLOCKS_DIFFER:
            raise ValueError("its time has not come yet")
        place = RecordPlace(at, file, offset, self.incomplete + self.damaged + self.missing)
        self.places.append(place)
        self.models.add(record["model"])
        if record["protocol"] == OPENPI:
            episode = record["model"], record["sequence"]
            self._episodes[episode] = max(place, self._episodes.get(episode, place))

    def _opened(self, line: bytes, file: int) -> tuple[int | None, bytes]:
        """Return a line's number in its file, None if that is not encrypted, and its text. Raises SealBroken."""
        seal = self._seals[file]
        return (None, line) if seal is None else seal.open(line)

    @staticmethod
    def _record(line: bytes) -> JournalRecord:
        """Return the record in a line. Raises ValueError: it is none, or of another format."""
        record = orjson.loads(line)
        if isinstance(record, dict) and record.get("format", FORMAT) != FORMAT:
            raise _OtherFormat(record["format"])
        if not isinstance(record, dict) or not JournalRecord.__required_keys__ <= record.keys():
            raise ValueError("the line is no record")
        if not all(is_kind(record[name]) for name, is_kind in _KINDS.items()):
            raise ValueError("a field has a value of another kind")
        return cast("JournalRecord", record)


def _other_format(path: Path, number: Any) -> str:
    return (
        f"{path} has records of format {str(number)[:_MOST_SHOWN]}, and this version of torchserve-py reads format"
        f" {FORMAT}: use the version that has written them, or a later one."
    )


def _to_end_of_line(file: BinaryIO) -> int:
    """Read the rest of a line that is longer than any record; return how many bytes, 0 if the line has no end."""
    size = 0
    while rest := file.readline(_LONGEST_LINE):
        size += len(rest)
        if rest.endswith(b"\n"):
            return size
    return 0


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
