"""Where a model that is named by a path is: in the model store, or a folder anywhere."""

from __future__ import annotations

from pathlib import Path

from torchserve_py.archive.errors import ArchiveNotFound


def locate(location: str, model_store: Path | None) -> Path:
    """The archive file or model folder that `location`, which is no URL, stands for.

    In this order: an entry of the model store; a folder, by its absolute path or relative to the working directory;
    and where a path leads nowhere, the entry of the model store that has its last component, as TorchServe does.
    Archive files are taken from the model store only. Raises ArchiveNotFound with TorchServe's messages.
    """
    store = check_location(location, model_store)
    relative = Path(location)
    if not relative.is_absolute() and (store / relative).exists():
        return store / relative
    if relative.is_dir():
        return relative
    if relative.exists() and store.resolve() not in relative.resolve().parents:
        detail = f"archive files are taken from the model store {store} only"
        raise ArchiveNotFound(f"Model not found at: {location}", detail)
    candidate = relative if relative.exists() else store / relative.name
    if not relative.name or not candidate.exists():
        raise ArchiveNotFound(f"Model not found at: {location}")
    return candidate


def check_location(location: str, model_store: Path | None) -> Path:
    """The model store, when `location` (a path or a URL) may be looked for at all. Raises ArchiveNotFound."""
    if model_store is None:
        raise ArchiveNotFound("Model store has not been configured.")
    if not location:
        raise ArchiveNotFound("empty url")
    if ".." in location:
        raise ArchiveNotFound(f"Relative path is not allowed in url: {location}")
    if "\0" in location:
        raise ArchiveNotFound(f"Model not found at: {location!r}")
    return model_store
