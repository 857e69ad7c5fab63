"""The daily files with what each key has used of each model, `usage_folder`.

A file has a line of JSON for each key and model. It is replaced as a whole, so readers never see half of it; a server
that starts again on the same day goes on counting.
"""

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import date
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Lock
from typing import Any, Final

from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.base.settings.schemas.values import is_number
from torchserve_py.ops.keys.key_account import KeyUsage
from ts.protocol.regular_files import read_regular

logger = logging.getLogger(__name__)

_LOCK: Final = ".lock"
_MOST_BYTES: Final = 64 << 20
_COUNTS: Final = tuple(field.name for field in fields(KeyUsage))


class UsageFolderError(Exception):
    """The folder cannot be used; the message says why."""


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other servers from it. Raises UsageFolderError."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UsageFolderError(f"usage_folder {folder}: {error.strerror or error}") from error
    try:
        flock(lock, LOCK_EX | LOCK_NB)
        yield
    except BlockingIOError as error:
        raise UsageFolderError(
            f"usage_folder {folder} is another server's; give each server a folder of its own"
        ) from error
    finally:
        os.close(lock)


class UsageOfDay:
    """What was used on one day, in UTC; what the day's file says already counts.

    Raises OSError: it cannot be read; ValueError: it is too large.
    """

    def __init__(self, folder: Path, day: date) -> None:
        self.day = day
        self._file = folder / f"usage-{day.isoformat()}.jsonl"
        self._used: dict[tuple[str, str], KeyUsage] = {}
        self._has_changed = False
        self._writing = Lock()
        if self._file.exists():
            self._read()

    def add(self, key: str, model: str, used: KeyUsage) -> None:
        """Add what a key has used of a model."""
        total = self._used.setdefault((key, model), KeyUsage())
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + getattr(used, name))
        self._has_changed = True

    def write(self) -> None:
        """Replace the file, unless nothing has changed. Blocks. Raises OSError: it cannot be written."""
        with self._writing:  # the last time, at the server's end, may come while a thread writes
            if self._has_changed:
                self._replace()
                self._has_changed = False

    def _replace(self) -> None:
        lines = [
            json.dumps({"day": self.day.isoformat(), "key": key, "model": model, **_rounded(used)})
            for (key, model), used in sorted(self._used.items())
        ]
        write_atomically(self._file, "".join(f"{line}\n" for line in lines))

    def _read(self) -> None:
        for line in read_regular(self._file, _MOST_BYTES).decode("utf-8", "replace").splitlines():
            try:
                entry = json.loads(line)
                used = KeyUsage(**{name: _count(entry[name]) for name in _COUNTS})
                self._used[str(entry["key"]), str(entry["model"])] = used
            except (ValueError, KeyError, TypeError, RecursionError):
                logger.warning("%s: a line that is no usage is dropped: %.80s", self._file, line)


def _count(value: Any) -> Any:
    """Return what a line says for a count. Raises ValueError: it is none."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(value)
    return value


def _rounded(used: KeyUsage) -> dict[str, float]:
    return {**asdict(used), "seconds": round(used.seconds, 6)}
