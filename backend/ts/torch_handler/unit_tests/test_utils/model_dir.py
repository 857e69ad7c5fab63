"""Fills the folder of a model for a handler's own unit tests."""

import os
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlparse

#: Where downloaded weights are kept, below the current folder.
_CACHE = ".cache"


def download_model(model_url: str, model_dir: str | os.PathLike[str]) -> None:
    """Put weights into a folder as ``model.pt``; they are downloaded once and kept in ``.cache``.

    Raises OSError: they cannot be downloaded; ValueError: the URL is not one of ``http``, ``https`` or ``file``.
    """
    parts = urlparse(model_url)
    if parts.scheme not in ("http", "https", "file"):
        raise ValueError(f"model_url is {model_url!r}, it must begin with http://, https:// or file://")
    kept = Path(_CACHE, Path(parts.path).name)
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        partial = kept.with_name(f"{kept.name}.part")
        with urllib.request.urlopen(model_url) as source, partial.open("wb") as sink:  # noqa: S310 - checked above
            shutil.copyfileobj(source, sink)
        partial.replace(kept)
    shutil.copy(kept, Path(model_dir, "model.pt"))


def copy_files(src_dir: str | os.PathLike[str], dst_dir: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Copy files of one folder to another; ``files`` has the name of each there by its name here."""
    for source, target in files.items():
        shutil.copyfile(Path(src_dir, source), Path(dst_dir, target))
