"""The files of models in Ray's object store, for the nodes that run their workers."""

import asyncio
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: Bytes of a model's files that pass through the object store in one piece.
_PART: Final = 64 << 20


class ModelArchives:
    """An archive (tar) of each model, packed once and again when the files have changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, tuple[str, list[Any]]]] = {}
        self._packing = asyncio.Lock()  # so that workers which start together share what the first one packs

    async def of(self, folder: Path) -> tuple[str, list[Any]]:
        """Return the SHA-256 digest of an archive of the folder, and references to the archive's parts.

        Raises OSError: a file cannot be read.
        """
        async with self._packing:
            return await asyncio.to_thread(self._pack, folder)

    def forget(self, folder: Path) -> None:
        """Let Ray drop the archive of a folder."""
        self._known.pop(folder, None)

    def _pack(self, folder: Path) -> tuple[str, list[Any]]:
        import ray

        files = list(_files(folder))
        state = [(name, *_state(path)) for name, path in files]
        known = self._known.get(folder)
        if known is not None and known[0] == state:
            return known[1]
        digest, parts = hashlib.sha256(), []
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w", dereference=True) as packed:
                for name, path in files:
                    packed.add(path, name, recursive=False, filter=_anonymous)
            file.seek(0)
            while piece := file.read(_PART):
                digest.update(piece)
                parts.append(ray.put(piece))
        found = (digest.hexdigest(), parts)
        self._known[folder] = (state, found)
        return found


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield folders and files with their names in the archive; what links lead to is there in their place.

    Links that lead nowhere or into a folder around them are left out, and what is no file.

    Raises OSError: a folder cannot be read.
    """

    def inside(path: Path, name: str, around: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
        real = path.resolve()
        if path.is_dir() and real not in around:
            yield name, path
            for each in sorted(os.listdir(path)):  # noqa: PTH208 - names
                if each != "__pycache__":
                    yield from inside(path / each, f"{name}/{each}", (*around, real))
        elif path.is_file():
            yield name, path

    return inside(folder, ".", ())


def _state(path: Path) -> Iterator[int]:
    status = path.stat()
    yield from (status.st_mode, status.st_size if path.is_file() else 0, status.st_mtime_ns)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out what differs between two copies of the same files."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry
