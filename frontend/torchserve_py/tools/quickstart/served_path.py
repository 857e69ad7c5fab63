"""What `torchserve-py serve` is given: a Python file, a folder or an archive; and whether its files have changed."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from torchserve_py.base.settings.model_spec import ARCHIVE_SUFFIXES, ModelSpec, is_archive_name
from torchserve_py.core.archive.file_function import PYTHON_SUFFIX, split_function
from torchserve_py.core.archive.function_source import models_in

#: What a Python file may read beside it, of which a change counts.
_BESIDE: Final = (PYTHON_SUFFIX, ".yaml", ".yml", ".json", ".toml")
_NOT_SOURCE: Final = ("__pycache__", "logs", "node_modules")
_ENVIRONMENT_FILE: Final = "pyvenv.cfg"
#: Files of a model that are served as they are; with all but the last, loading runs code that is in the file.
MODEL_FILES: Final = (".joblib", ".pkl", ".pickle", ".onnx")
WORKFLOW_SUFFIX: Final = ".war"
_MODULE: Final = """from ts import serve
from ts.contracts.served_functions.object_files import load_model

serve(load_model({path!r}))
"""
#: More files than this are not looked at: a folder with so many holds other things than a model.
_MAX_FILES: Final = 10_000
#: By file: the moment of the last change, and the size.
Stamps = Mapping[str, tuple[int, int]]


class NoModel(ValueError):
    """There is no model at a path; the message says what would be one."""


@dataclass(frozen=True, slots=True)
class ServedPath:
    """What to serve, a model or a Python file with several: where it lies, and what the server loads."""

    path: Path
    spec: ModelSpec

    @classmethod
    def of(cls, text: str, store: Path) -> Self:
        """Return the path that a user has typed; an archive is linked into the model store.

        Raises NoModel: there is no model there.
        """
        path = Path(os.path.realpath(text))  # returns the path itself if links lead in a circle
        file, function = split_function(str(path))
        try:
            exists, is_function = path.exists(), bool(function) and Path(file).is_file()
        except OSError as error:  # such as a name that is too long
            raise NoModel(f"{text}: {error.strerror}") from error
        if not exists and is_function:
            return cls(Path(file), ModelSpec(None, str(path)))
        if not exists:
            raise NoModel(f"{text}: there is no such file or folder")
        if path.is_dir() or (path.suffix == PYTHON_SUFFIX and path.is_file()):
            return cls(path, ModelSpec(None, str(path)))
        if path.suffix in MODEL_FILES:
            return cls(path, ModelSpec(None, str(_module_of(path, store))))
        if not is_archive_name(path.name) and path.suffix != WORKFLOW_SUFFIX:
            archives, models = ", ".join((*ARCHIVE_SUFFIXES, WORKFLOW_SUFFIX)), ", ".join(MODEL_FILES)
            raise NoModel(f"{text} is no Python file, folder or archive ({archives}), and no model ({models})")
        link = store / path.name
        if link.is_symlink() and link.resolve() != path:
            raise NoModel(f"{text}: another archive has the name {path.name}; give one of them another name")
        if not link.is_symlink():
            link.symlink_to(path)
        if path.suffix == WORKFLOW_SUFFIX:
            _link_nodes(path.parent, store)
        return cls(path, ModelSpec(None, path.name))

    def specs(self) -> Sequence[ModelSpec]:
        """Return what the server loads now: for each function of a Python file that has several, a model. Blocks."""
        if self.path.suffix != PYTHON_SUFFIX or self.path.is_dir() or split_function(self.spec.location)[1]:
            return [self.spec]
        try:
            names = models_in(self.path)
        except OSError:  # an editor is replacing it
            names = ()
        return [ModelSpec(None, f"{self.path}:{name}") for name in names] if len(names) > 1 else [self.spec]

    @property
    def is_workflow(self) -> bool:
        """Whether it is the archive of a workflow."""
        return self.path.suffix == WORKFLOW_SUFFIX and self.path.is_file()

    @property
    def runs_code(self) -> bool:
        """Whether the file is data that is loaded by running code in it."""
        return self.path.suffix in MODEL_FILES[:-1]

    def stamps(self, others: Set[Path] = frozenset()) -> Stamps:
        """Return the state of the files of which a change counts, without those at or below other paths. Blocks."""
        found: dict[str, tuple[int, int]] = {}
        for file in self._files():
            if others and not others.isdisjoint((file, *file.parents)):
                continue
            try:
                status = file.stat()
            except OSError:  # an editor is replacing it
                continue
            found[str(file)] = (status.st_mtime_ns, status.st_size)
            if len(found) == _MAX_FILES:
                break
        return found

    def _files(self) -> Iterator[Path]:
        if self.path.is_dir():
            yield from _files_below(self.path)
        elif self.path.suffix == PYTHON_SUFFIX:
            yield from (file for file in _files_below(self.path.parent) if file.suffix in _BESIDE)
        else:
            yield self.path


def _module_of(file: Path, store: Path) -> Path:
    """Write the module that serves a file of a model, under a name that Python can import; return its path."""
    folder = Path(tempfile.mkdtemp(dir=store, prefix="model-"))
    module = folder / f"{re.sub(r'[^0-9A-Za-z_-]', '_', file.stem)}{PYTHON_SUFFIX}"
    module.write_text(_MODULE.format(path=str(file)), encoding="utf-8")
    return module


def _link_nodes(folder: Path, store: Path) -> None:
    """Link the archives beside that of a workflow into the model store: its nodes may be among them."""
    for archive in folder.iterdir():
        if is_archive_name(archive.name) and not (store / archive.name).is_symlink():
            (store / archive.name).symlink_to(archive)


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _NOT_SOURCE and not (here / name / _ENVIRONMENT_FILE).exists()
        ]
        yield from (here / name for name in files if not name.startswith("."))
