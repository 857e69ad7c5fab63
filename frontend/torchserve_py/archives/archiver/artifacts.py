"""Which files go into a model archive, and under which names: TorchServe flattens them into one folder.

Nothing is copied or opened here: the files are found, and the archive is later written straight from where they are.
"""

import glob
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.base.settings.schemas.schema import Schema, read
from torchserve_py.base.settings.schemas.values import Expected, Texts, is_inside
from torchserve_py.core.archive.manifest import MANIFEST_PATH

log = logging.getLogger(__name__)

UNWANTED_FOLDERS = ("__MACOSX", "__pycache__")
_WILDCARD = re.compile(r"[*?]|\[.*\]")


class _Packages(Schema):
    """Where a Truss has packages, in its `config.yaml`."""

    bundled_packages_dir: Annotated[str, Expected("a path inside of the Truss's folder", is_inside)] = "packages"
    external_package_dirs: Texts = None


class Artifacts:
    """The files of an archive by their paths in it, without the manifest.

    `leave_out` is the archive that is being written: wildcards and folders may reach it, and it never holds itself.
    """

    def __init__(self, leave_out: Path) -> None:
        self._leave_out = leave_out.resolve()
        self._files: dict[PurePosixPath, Path] = {}

    def sorted_files(self) -> list[tuple[PurePosixPath, Path]]:
        """Path in the archive and file on disk, by path."""
        return sorted(self._files.items())

    def add_files(self, *files: str | Path | None) -> None:
        """Add files at the root of the archive; an absent one is left out. Raises FileNotFoundError."""
        for file in [Path(each) for each in files if each]:
            if not file.is_file():
                raise FileNotFoundError(f"File does not exist: {file}")
            self._add(PurePosixPath(file.name), file)

    def add_extra_files(self, paths: str) -> None:
        """Add `--extra-files`: a comma-separated list of files, wildcards, and folders, whose contents go to the root.

        A wildcard that matches nothing is a warning. Raises FileNotFoundError for a plain path that leads nowhere.
        """
        for path in filter(None, (item.strip() for item in paths.split(","))):
            for match in _matches(path):
                if match.is_dir():
                    self._add_folder(match, PurePosixPath())
                elif not self._is_left_out(match):
                    self._add(PurePosixPath(match.name), match)

    def add_external_packages(self, config_name: str) -> None:
        """Add the packages that a Truss uses from outside of its folder, as Truss's own build does.

        The contents of each of `external_package_dirs` go to the bundled packages, so that they are imported as before.
        Relative ones start from the folder of the file `config_name`. Raises PackError, FileNotFoundError.
        """
        from torchserve_py.base.settings.schemas.yaml_mapping import (  # few archives need it
            UnreadableYaml,
            read_yaml_mapping,
        )

        config_file = self._files[PurePosixPath(config_name)]
        try:
            mapping = read_yaml_mapping(config_file, last_wins=True)
        except UnreadableYaml as error:
            raise PackError(f"{config_file}: {error}") from error
        config, problems = read(_Packages, mapping.values, lines=mapping.lines)
        if problems:
            raise PackError(f"{config_file}: {'; '.join(problems.values())}")
        for external in config.external_package_dirs or ():
            self._add_folder(config_file.parent / external, PurePosixPath(config.bundled_packages_dir))

    def _add_folder(self, folder: Path, under: PurePosixPath) -> None:
        """Add the contents of `folder` below a folder of the archive. Raises FileNotFoundError."""
        if not folder.is_dir():
            raise FileNotFoundError(f"Folder does not exist: {folder}")
        for file in _files_below(folder):
            if not self._is_left_out(file):
                self._add(under.joinpath(*file.relative_to(folder).parts), file)

    @property
    def top_names(self) -> set[str]:
        """What the archive's root holds."""
        return {name.parts[0] for name in self._files}

    def _is_left_out(self, file: Path) -> bool:
        resolved = file.resolve()
        return self._leave_out in (resolved, *resolved.parents)

    def _add(self, name: PurePosixPath, file: Path) -> None:
        if name == MANIFEST_PATH:
            return
        earlier = self._files.get(name)
        if earlier is not None and not earlier.samefile(file):
            log.warning("%s and %s have the same path %s in the archive: the second is taken", earlier, file, name)
        self._files[name] = file


def _matches(path: str) -> list[Path]:
    if Path(path).exists():
        return [Path(path)]
    if not _WILDCARD.search(path):
        raise FileNotFoundError(f"File does not exist: {path}")
    found = sorted(glob.glob(path))  # noqa: PTH207, Path.glob takes no absolute pattern
    if not found:
        log.warning("Given wildcard pattern did not match any file: %s", path)
    return [Path(match) for match in found]


def _files_below(folder: Path) -> Iterator[Path]:
    """Every file below `folder` but those in hidden and unwanted folders. Links are followed, but not in circles."""
    seen = {folder.resolve()}
    for parent, folders, files in os.walk(folder, followlinks=True):
        kept = [name for name in sorted(folders) if name not in UNWANTED_FOLDERS and not name.startswith(".")]
        folders[:] = [name for name in kept if (Path(parent) / name).resolve() not in seen]
        seen.update((Path(parent) / name).resolve() for name in folders)
        for name in files:
            file = Path(parent) / name
            if not file.is_file():
                raise ValueError(f"Invalid extra file given {file}")
            yield file
