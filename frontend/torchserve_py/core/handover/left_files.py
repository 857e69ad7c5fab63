"""A folder in which servers leave their sequences in memory: each in a file, in a folder of its model."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from torchserve_py.core.handover.left_format import HEAD_SIZE, known_in, known_size, packed
from torchserve_py.core.handover.server_lists import ServerLists
from torchserve_py.core.handover.storage import Found, Known, Storage
from ts.protocol.regular_files import open_regular

#: After how long a file is nobody's that is being written, or was taken by a server that died then (seconds).
_ABANDONED: Final = 3600.0
#: The folder of the lists of servers.
_LISTS: Final = "servers"


def in_folder(folder: Path, *, is_shared: bool = False) -> Storage:
    """Return the storage in a folder, which other servers that run have, too, if it ``is_shared``."""
    files = LeftFiles(folder)
    return Storage(files, ServerLists(folder / _LISTS, files.among) if is_shared else None)


class LeftFiles:
    """The `LeftStates` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> dict[str, Found]:
        """Return all; remove those that are over, and what servers that died have left behind."""
        now = time.time()
        found: dict[str, Found] = {}
        for path in self._folder.glob("*/*"):
            if path.parent.name == _LISTS:
                continue
            with contextlib.suppress(OSError):  # another server takes it, or it cannot be removed
                if path.name.startswith("."):
                    if path.stat().st_mtime < now - _ABANDONED:
                        path.unlink()
                elif (known := _known_in(path)) is not None and known.ends_at <= now:
                    path.unlink()
                else:  # of a damaged one the version does not matter: whoever asks for it learns that it is lost
                    key = f"{path.parent.name}/{path.name}"
                    found[key] = Found("" if known is None else known.version, key)
        return found

    def among(self, keys: Collection[str]) -> dict[str, Found]:
        """Return those of these that are there."""
        found: dict[str, Found] = {}
        for model in {key.partition("/")[0] for key in keys}:
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(self._folder / model, os.O_RDONLY | os.O_DIRECTORY))  # a client of NFS asks again
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                known = _known_in(self._folder / key)
                found[key] = Found("" if known is None else known.version, key)
        return found

    def write(self, key: str, known: Known, given: Iterable[bytes], counts: Callable[[], bool]) -> None:
        path = self._folder / key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = packed(known, given)
        partial_path = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        try:
            with open(os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(content)
            if counts():
                partial_path.rename(path)
                return
        except OSError:  # the disk may be full
            partial_path.unlink(missing_ok=True)
            raise
        partial_path.unlink(missing_ok=True)

    def take(self, key: str, taken: str) -> bytes | None:
        path = self._folder / taken
        if not os.path.lexists(path):
            try:
                (self._folder / key).rename(path)
            except FileNotFoundError:
                return None
            os.utime(path)
        with open(open_regular(path), "rb") as file:
            return file.read()

    def rename(self, key: str, other: str) -> None:
        (self._folder / key).rename(self._folder / other)

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):
                (self._folder / key).unlink(missing_ok=True)

    def drop(self, model: str) -> None:
        self.remove(f"{model}/{path.name}" for path in (self._folder / model).glob("*"))


def _known_in(path: Path) -> Known | None:
    """Return what a file says before the state; None if it cannot be read. Raises FileNotFoundError."""
    try:
        with open(open_regular(path), "rb") as file:
            size = known_size(file.read(HEAD_SIZE))
            return None if size is None else known_in(file.read(size))
    except FileNotFoundError:
        raise
    except OSError:
        return None
