"""What a model at rest holds, without unpacking it: its manifest, the names of its files, its configuration.

An archive passes the same checks as when it is unpacked, but for its size and the checksums of the files not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.contract import TORCHSERVE, contract_of
from torchserve_py.archive.errors import ArchiveError, InvalidArchive, UnreadableArchive, UnsafeArchive
from torchserve_py.archive.limits import DEFAULT_LIMITS, Meter
from torchserve_py.archive.manifest import MANIFEST_PATH, MAX_MANIFEST_BYTES, Manifest, parse
from torchserve_py.archive.model_files import open_model
from torchserve_py.archive.model_spec import fallback_name
from torchserve_py.archive.plain_folder import describe_names
from torchserve_py.archive.target import Target
from torchserve_py.archive.unpack import BROKEN, walk

_CONFIG_SUFFIXES = (".yaml", ".yml")
_MAX_CONFIG_BYTES = 1 << 20  # read_model_config reads no more either
_MAX_CONFIGS = 64


@dataclass(frozen=True, slots=True)
class Contents:
    """A model that was looked at: its name, manifest, the paths of its files, the bytes of its model-config.yaml.

    `model_dir` is where its files are, None while they are packed.
    """

    name: str
    manifest: Manifest
    files: frozenset[str]
    config: bytes | None
    contract: str = TORCHSERVE
    model_dir: Path | None = None


def read_contents(path: Path, *, url: str, handler: str | None = None) -> Contents:
    """Look into the archive file or the folder at `path`; `url` and `handler` are as in `open_model`.

    Raises ArchiveError with what unpacking it would raise.
    """
    if path.is_dir():
        return _of_folder(path, url, handler)
    kept: dict[str, bytes] = {}
    names: set[str] = set()
    try:
        with path.open("rb") as file:
            walk(file, url, DEFAULT_LIMITS, Cancellation(), lambda meter: _Listing(url, meter, names, kept))
    except ArchiveError:
        raise
    except BROKEN as error:
        raise UnreadableArchive(url, f"{type(error).__name__}: {error}") from error
    return _of_archive(url, handler, names, kept)


def _of_folder(path: Path, url: str, handler: str | None) -> Contents:
    found = open_model(path, path, url=url, handler=handler)  # a folder is used in place
    files = {str(file.relative_to(found.model_dir)) for file in found.model_dir.rglob("*") if file.is_file()}
    config = found.config_file
    content = None
    if config is not None and config.is_file():
        with config.open("rb") as file:
            content = file.read(_MAX_CONFIG_BYTES + 1)
    return Contents(found.name, found.manifest, frozenset(files), content, found.contract, found.model_dir)


def _of_archive(url: str, handler: str | None, names: set[str], kept: Mapping[str, bytes]) -> Contents:
    root = _root(names)
    files = frozenset(name.removeprefix(root) for name in names)
    manifest_text = kept.get(f"{root}{MANIFEST_PATH}")
    name = fallback_name(url)
    top = [file for file in files if "/" not in file]
    if manifest_text is not None:
        if len(manifest_text) > MAX_MANIFEST_BYTES:
            detail = f"{MANIFEST_PATH} is larger than {MAX_MANIFEST_BYTES} bytes"
            raise InvalidArchive("Failed to parse signature.json.", detail)
        manifest = parse(manifest_text)
        contract = TORCHSERVE if handler or manifest.handler else contract_of(top)
    else:
        contract = TORCHSERVE if handler else contract_of(top)
        manifest = describe_names(top, url, model_name=name, handler=handler, contract=contract)
    config = kept.get(f"{root}{manifest.config_file}") if manifest.config_file else None
    return Contents(manifest.model_name or name, manifest, files, config, contract)


def _root(names: set[str]) -> str:
    """The only folder at the top, where there is nothing else: archives are often packed below one of their own."""
    tops = {name.split("/", 1)[0] for name in names}
    if len(tops) == 1 and all("/" in name for name in names) and tops != {MANIFEST_PATH.parts[0]}:
        return f"{tops.pop()}/"
    return ""


class _Listing(Target):
    """Takes the names of an archive's files, and the content of those that may be a manifest or a configuration."""

    def __init__(self, url: str, meter: Meter, names: set[str], kept: dict[str, bytes]) -> None:
        super().__init__(url, Path(), meter)
        self._names = names
        self._kept = kept

    def add_folder(self, name: str) -> None:
        self._meter.add_entry()
        self._parts(name)

    def add_file(self, name: str, content: BinaryIO) -> None:
        self._meter.add_entry()
        parts = self._parts(name)
        if not parts:
            raise UnsafeArchive(self._url, f"{name!r} is no file name")
        path = PurePosixPath(*parts)
        if str(path) in self._names:
            raise UnsafeArchive(self._url, f"{name!r} is in it twice")
        self._names.add(str(path))
        is_manifest = path.parts[-2:] == MANIFEST_PATH.parts
        if is_manifest or (path.suffix in _CONFIG_SUFFIXES and len(self._kept) < _MAX_CONFIGS):
            self._kept[str(path)] = content.read(_MAX_CONFIG_BYTES + 1)
