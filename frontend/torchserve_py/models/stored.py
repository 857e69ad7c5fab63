"""Which models the model store holds, by the names under which they would be registered."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from torchserve_py.archive.checksum import split_checksum
from torchserve_py.archive.errors import ArchiveError
from torchserve_py.archive.fetch import file_name
from torchserve_py.archive.model_spec import ModelSpec, expand_model_specs, fallback_name, is_url
from torchserve_py.archive.outline import outline
from torchserve_py.models.contracts import configuration_of
from torchserve_py.models.errors import ModelError

_ALL: Final = ModelSpec(None, "all")
#: An archive of this kind must be read from its beginning to its end to be looked into.
_COMPRESSED: Final = ".tar.gz"

#: What tells that an archive, or what lies at the top of a folder, has changed: names, times and sizes.
_Stamp = tuple[tuple[str, int, int], ...]


class StoredModels:
    """Looks into the model store; what has not changed since is not read again.

    Args:
        store: The model store.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._names: dict[Path, tuple[_Stamp, str]] = {}

    def by_name(self, served: Collection[str]) -> dict[str, list[str]]:
        """The locations of the models that are not served, by name. Blocks.

        Args:
            served: What the models that are served were registered with.
        """
        try:
            specs = expand_model_specs([_ALL], self._store)
        except OSError:  # it is gone, or not for us
            return {}
        taken = {self._place(url) for url in served}
        found: dict[str, list[str]] = {}
        names: dict[Path, tuple[_Stamp, str]] = {}
        for spec in specs:
            path = self._place(spec.location)
            if path in taken:
                continue
            stamp = _stamp_of(path)
            known = self._names.get(path)
            names[path] = known if known is not None and known[0] == stamp else (stamp, _name_of(path, spec.location))
            found.setdefault(names[path][1], []).append(spec.location)
        self._names = names
        return found

    def _place(self, url: str) -> Path:
        """Where a model is that was registered so; a download is in the model store."""
        try:
            location = file_name(split_checksum(url)[0]) if is_url(url) else url
        except ValueError:
            location = url
        return Path(os.path.normpath(self._store / location))


def _name_of(path: Path, location: str) -> str:
    """The name under which a model would be registered; that of its file, where that cannot be told."""
    if not location.endswith(_COMPRESSED):
        try:
            with outline(path, url=location) as files:
                return configuration_of(files).name or files.name
        except (ArchiveError, ModelError, OSError):
            pass  # whoever loads it is told why
    return fallback_name(location.removesuffix(_COMPRESSED))


def _stamp_of(path: Path) -> _Stamp:
    try:
        entries = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
        stats = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return ()
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
