"""A model's files, ready for a worker: opened from an archive file or from a folder.

`outline` opens an archive without unpacking it: all that a registration reads is there, and nothing else. The archive
becomes a folder for the time being, in which large files and files of other kinds are empty. It passes the same checks
as when it is unpacked, but for the checksums of the files not read.

A folder needs no manifest, nor does an archive that was made without the archiver: a file is found by its name then,
and several candidates are an error.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torchserve_py.base.settings.model_spec import fallback_name
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.archive.contract import TORCHSERVE
from torchserve_py.core.archive.contracts import contract_of, known_contracts, telling_files
from torchserve_py.core.archive.errors import ArchiveNotFound, InvalidArchive, UnreadableArchive
from torchserve_py.core.archive.file_function import PYTHON_SUFFIX, FileFunction, split_function
from torchserve_py.core.archive.function_source import read_source
from torchserve_py.core.archive.manifest import MANIFEST_PATH, Manifest, describe, read
from torchserve_py.core.archive.model_source import ModelSource
from torchserve_py.core.archive.unpack import only_folder, unpack, unpack_outline

logger = logging.getLogger(__name__)

_CONFIG_FILE = "model-config.yaml"
_WEIGHT_SUFFIXES = (".pt", ".pth")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are and what its manifest says."""

    name: str  # the manifest's, else one made of the archive's or folder's name
    model_dir: Path  # what a worker gets as `model_dir`
    manifest: Manifest
    unpacked_dir: Path | None = None  # the private folder that was made for an archive; a folder is used in place
    downloaded: Path | None = None  # the file in the model store that was downloaded for it
    dependencies_dir: Path | None = None  # the private folder with what was installed for it
    venv_python: Path | None = None  # the interpreter of its own virtual environment
    packages_dir: Path | None = None  # packages that were installed for it, without a virtual environment
    contract: str = TORCHSERVE  # how its code is called, see `contract`
    source: ModelSource | None = None  # what its handler's file says, if that uses `ts.serve`
    function: FileFunction | None = None  # what it is of a file with several models

    @property
    def config_file(self) -> Path | None:
        """The model's own configuration (model-config.yaml), if it has one."""
        return self.model_dir / self.manifest.config_file if self.manifest.config_file else None

    def remove(self, *, downloaded: bool = False) -> None:
        """Delete what was unpacked and installed, and with `downloaded` (it is unregistered) the download as well.

        A folder of the user's is never touched. Nothing happens where the files are gone already.
        """
        for folder in (self.unpacked_dir, self.dependencies_dir):
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
        if downloaded and self.downloaded:
            self.downloaded.unlink(missing_ok=True)


def open_model(
    path: Path, temp_dir: Path, *, url: str = "", handler: str | None = None, has_default_handler: bool = False
) -> ModelFiles:
    """Open the archive file, the folder or the Python file at `path`. Blocks: call it in a thread.

    A Python file is the handler of a model whose other files lie beside it, and whose name is that of the file, or that
    of the function in a `url` as ``file.py:function``. An archive is unpacked below `temp_dir`. `url` is what the user
    called it; `path` when empty.
    `handler` is the one that the registration names: then none is looked for in a model without a manifest.
    `has_default_handler`: whether `default_service_handler` names one for models that name none.
    Raises ArchiveNotFound, InvalidArchive, UnreadableArchive, UnsafeArchive or Cancelled; then nothing is left behind.
    """
    url = url or str(path)
    if path.is_dir():
        folder = path.absolute()
        return _open_folder(folder, folder.name, url, handler, has_default_handler=has_default_handler)
    if not path.is_file():
        raise ArchiveNotFound(f"Model not found at: {url}")
    if path.suffix == PYTHON_SUFFIX:
        file = path.absolute()
        function = split_function(url)[1]
        named = f"{file.name}:{function}" if function else file.name
        return _open_folder(file.parent, function or file.stem, url, handler or named)
    unpacked = unpack(path, temp_dir.absolute(), url=url)
    try:
        opened = _open_folder(unpacked, url, url, handler, is_unpacked=True, has_default_handler=has_default_handler)
        return replace(opened, unpacked_dir=unpacked)
    except BaseException:
        shutil.rmtree(unpacked, ignore_errors=True)
        raise


@contextmanager
def outline(
    path: Path, *, url: str, handler: str | None = None, has_default_handler: bool = False
) -> Iterator[ModelFiles]:
    """Open the archive file or the folder at `path`; the other arguments are those of `open_model`.

    Raises ArchiveError with what unpacking it would raise.
    """
    if not path.is_file() or path.suffix == PYTHON_SUFFIX:
        yield open_model(path, path, url=url, handler=handler, has_default_handler=has_default_handler)
        return
    with tempfile.TemporaryDirectory(prefix="torchserve-outline-") as folder:
        unpack_outline(path, Path(folder), url=url)
        yield _open_folder(Path(folder), url, url, handler, is_unpacked=True, has_default_handler=has_default_handler)


def files_in(model_dir: Path) -> frozenset[str]:
    """The paths of all files in a model's folder, relative to it."""
    return frozenset(str(file.relative_to(model_dir)) for file in model_dir.rglob("*") if file.is_file())


def _open_folder(
    folder: Path,
    name: str,
    url: str,
    handler: str | None,
    *,
    is_unpacked: bool = False,
    has_default_handler: bool = False,
) -> ModelFiles:
    """Open a folder of a model's files. The model's name is made of `name` where the manifest gives none.

    `url`, `handler` and `has_default_handler` are as in `open_model`; `is_unpacked`: the folder was made
    for this model alone. Raises InvalidArchive or UnreadableArchive.
    """
    name = fallback_name(name)
    try:
        root = _model_root(folder)
        names = sorted(entry.name for entry in root.iterdir() if entry.is_file())
        told = [*names, *telling_files(root)]
        contract = TORCHSERVE if handler else contract_of(told, has_default_handler=has_default_handler)
        source = _source(root, handler) if handler else None
        if source is None and (root / MANIFEST_PATH).is_file():
            manifest = read(root / MANIFEST_PATH)
            for key in ("createdOn", "archiverVersion"):  # as TorchServe warns
                if manifest.raw.get(key) is None:
                    text = "%s: %s is missing in %s; was it made by torch-model-archiver?"
                    logger.warning(text, without_secrets(url), key, MANIFEST_PATH)
            if manifest.handler:
                contract = TORCHSERVE
        else:
            manifest = _describe_folder(root, names, name, handler, contract, loads_weights=source is None)
        if source is None and manifest.handler:
            source = _source(root, manifest.handler)
        function = None
        if source is not None and source.is_one_of_several:
            place = url if is_unpacked else root.resolve()  # an archive is unpacked anew for each model
            function = FileFunction(f"{place}/{split_function(handler or manifest.handler or '')[0]}", source.name)
    except OSError as error:
        raise UnreadableArchive(url, str(error)) from error
    model_name = manifest.model_name or name
    return ModelFiles(model_name, root, manifest, contract=contract, source=source, function=function)


def _source(root: Path, handler: str) -> ModelSource | None:
    path, function = split_function(handler)
    file = root / path
    if file.suffix != PYTHON_SUFFIX or not file.is_file():
        return None
    return read_source(file, function)


def _model_root(folder: Path) -> Path:
    """`folder`, or its only entry where that is a folder: archives are often packed below a folder of their own."""
    return only_folder(folder) or folder


def _describe_folder(
    folder: Path, names: Sequence[str], model_name: str, handler: str | None, contract: str, *, loads_weights: bool
) -> Manifest:
    """The manifest of the model that the files in `folder`, called `names`, make.

    handler          `handler.py`, else the only `*handler*.py`; not looked for where `handler` is given.
    config file      `model-config.yaml`
    model file       `model.py`
    serialized file  `model.pt` or `model.pth`, else the only `.pt` or `.pth`
    requirements     `requirements.txt`

    Missing files are left out, and weights unless `loads_weights`. Models of other contracts than TorchServe's declare
    their other files themselves.
    Raises InvalidArchive, naming the candidates, where there are several.
    """
    handlers, weights = [], []
    has_handler = known_contracts()[contract].handlers
    if has_handler:
        shown = [name for name in names if not name.startswith(".")]
        handlers = [
            name for name in shown if name.endswith(".py") and "handler" in name and not name.startswith("test")
        ]
        weights = [name for name in shown if loads_weights and name.endswith(_WEIGHT_SUFFIXES)]
    preferred_weights = [f"model{suffix}" for suffix in _WEIGHT_SUFFIXES]
    return describe(
        model_name=model_name,
        handler=handler or _only("the handler", handlers, ["handler.py"], folder),
        config_file=_CONFIG_FILE if _CONFIG_FILE in names else None,
        model_file="model.py" if has_handler and "model.py" in names else None,
        serialized_file=_only("the weights", weights, preferred_weights, folder),
        requirements_file="requirements.txt" if "requirements.txt" in names else None,
    )


def _only(role: str, candidates: Sequence[str], preferred: Sequence[str], folder: Path) -> str | None:
    chosen = [name for name in preferred if name in candidates] or candidates
    if len(chosen) > 1:
        message = f"{folder} has no {MANIFEST_PATH}, and several files that could be {role} of the model"
        raise InvalidArchive(message, f"{', '.join(chosen)} (keep one of them, or call one {preferred[0]})")
    return chosen[0] if chosen else None
