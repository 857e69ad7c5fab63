"""Notices when files that a process has open are deleted or replaced.

Linux tells by inotify when something happens in a folder, and asking whether it did costs a fraction of a microsecond.
Elsewhere, or if the user has too many of these already, the files are looked for each time.
"""

import contextlib
import ctypes
import os
import select
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Final

#: What to be told of the folder: files that come and go.
_IN_FOLDER: Final = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
#: What to be told of the folder and those above it: that it was moved or deleted.
_OF_FOLDER: Final = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_MOST_EVENTS: Final = 2**16


class Presence:
    """Whether files are still where they were when this object was made.

    Args:
        paths: Of the files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._notices = _notices({Path(each).absolute().parent for each in paths})
        self._poll = select.poll()
        if self._notices is not None:
            self._poll.register(self._notices, select.POLLIN)
        self._there = {path: _identity(path) for path in paths}
        self._gone = ""

    def gone(self) -> str:
        """Return the path of a file that is there no more, "" if all are; once one is gone, it stays so."""
        if self._notices is not None and not self._poll.poll(0):
            return self._gone
        return self._look()

    def _look(self) -> str:
        if self._notices is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._notices, _MOST_EVENTS)
        if not self._gone:
            self._gone = next((path for path, there in self._there.items() if _identity(path) != there), "")
        return self._gone

    def close(self) -> None:
        if self._notices is not None:
            os.close(self._notices)
            self._notices = None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - several times with each commit, where it is not known otherwise
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _notices(folders: Set[Path]) -> int | None:
    """Return a descriptor that is readable after something has happened in or to folders; None if there is none."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    # A folder may be reached by a symbolic link, and both may be moved. What may not be read cannot be watched.
    above = {parent for folder in folders for each in (folder, folder.resolve()) for parent in each.parents}
    for each in above - folders:
        libc.inotify_add_watch(descriptor, os.fsencode(each), _OF_FOLDER)
    for each in folders:
        if libc.inotify_add_watch(descriptor, os.fsencode(each), _IN_FOLDER | _OF_FOLDER) < 0:
            os.close(descriptor)
            return None
    return descriptor
