"""Lists the models in the model store by the names under which they would be registered."""

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from torchserve_py.base.settings.model_spec import ModelSpec, expand_model_specs, fallback_name, is_url
from torchserve_py.core.archive.downloads import file_name, split_checksum
from torchserve_py.core.archive.errors import ArchiveError
from torchserve_py.core.archive.model_files import outline
from torchserve_py.core.plans.contracts import configuration_of
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import Serving
from torchserve_py.endpoints.routing import EndpointContext

_ALL: Final = ModelSpec(None, "all")
#: How the name of an archive ends that must be read completely to list its files.
_COMPRESSED: Final = re.compile(r"\.(?:tar\.gz|tgz)\Z", re.IGNORECASE)

#: Names, times and sizes of an archive or of a folder's top level; a difference means that the model has changed.
_Stamp = tuple[tuple[str, int, int], ...]


class StoredModels:
    """Lists the models in the model store; unchanged models are not read again."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return that of a server."""
        return cls(context.serving, context.settings.model_store)

    def __init__(self, serving: Serving, store: Path) -> None:
        self._serving = serving
        self._store = store
        self._names: dict[Path, tuple[_Stamp, str]] = {}

    async def by_name(self, known: Collection[str] = ()) -> Mapping[str, Sequence[str]]:
        """Return the locations of the models in the model store by name, without those served or ``known``."""
        served = [model.url for each in self._serving.models() for model in self._serving.versions(each.name)]
        return await asyncio.to_thread(self._by_name, [*served, *known])

    def _by_name(self, served: Collection[str]) -> dict[str, list[str]]:
        try:
            specs = expand_model_specs([_ALL], self._store)
        except OSError:  # the store was removed, or is not readable
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
        """Return the path of a model that was registered with ``url``; a download is in the model store."""
        try:
            location = file_name(split_checksum(url)[0]) if is_url(url) else url
        except ValueError:
            location = url
        return Path(os.path.normpath(self._store / location))


def _name_of(path: Path, location: str) -> str:
    """Return the name under which a model would be registered; if it cannot be read, the name of its file."""
    if not _COMPRESSED.search(location):
        try:
            with outline(path, url=location) as files:
                return configuration_of(files).name or files.name
        except (ArchiveError, ModelError, OSError):
            pass  # a call that loads the model gets the error
    return fallback_name(_COMPRESSED.sub("", location))


def _stamp_of(path: Path) -> _Stamp:
    try:
        entries = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
        stats = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return ()
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
