"""Finds a model by its path: an archive in the model store, or any folder or Python file."""

from pathlib import Path

from torchserve_py.core.archive.errors import ArchiveNotFound
from torchserve_py.core.archive.file_function import PYTHON_SUFFIX, split_function


def locate(location: str, model_store: Path | None) -> Path:
    """Return the archive file, model folder or handler's file at `location`, which is no URL.

    In this order: an entry of the model store, unless the location starts with `.`; a folder or a Python file, by its
    absolute path or relative to the working directory; and where a path leads nowhere, the entry of the model store
    that has its last component, as TorchServe does. Archive files are taken from the model store only. Of
    ``file.py:function`` the file is returned.
    Raises ArchiveNotFound with TorchServe's messages.
    """
    store = check_location(location, model_store)
    try:
        found = _find(split_function(location)[0], store)
    except OSError as error:  # a path that is too long, or may not be looked at
        raise ArchiveNotFound(f"Model not found at: {location}", error.strerror or str(error)) from error
    if found is None:  # clients are not told which files there are elsewhere
        detail = f"archive files are taken from the model store {store} only, folders also from {Path.cwd()}"
        raise ArchiveNotFound(f"Model not found at: {location}", detail)
    return found


def _find(location: str, store: Path) -> Path | None:
    path = Path(location)
    if not path.is_absolute() and not location.startswith(".") and (store / path).exists():
        return store / path
    if path.is_dir() or (path.suffix == PYTHON_SUFFIX and path.is_file()):
        return path
    if path.exists():
        return path if store.resolve() in path.resolve().parents else None
    return store / path.name if path.name and (store / path.name).exists() else None


def check_location(location: str, model_store: Path | None) -> Path:
    """Return the model store. Raises ArchiveNotFound if `location`, a path or a URL, must not be looked for."""
    if model_store is None:
        raise ArchiveNotFound("Model store has not been configured.")
    if not location:
        raise ArchiveNotFound("empty url")
    if ".." in location:
        raise ArchiveNotFound(f"Relative path is not allowed in url: {location}")
    if "\0" in location:
        raise ArchiveNotFound(f"Model not found at: {location!r}")
    return model_store
