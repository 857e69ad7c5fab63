"""The default files of the file store of sequences, in the server's state folder.

It is `sequences` in the folder of the logs, beside the snapshots, which have to outlive a restart as well. Each version
of a model has a file of its own, so that a new version never reads states that another one has written.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from torchserve_py.core.errors import InvalidModel
from torchserve_py.settings.schemas.cache import CacheConfig
from torchserve_py.workers.confinement import Confinement

_FOLDER = "sequences"
#: The longest file name, in bytes, that is not replaced by its hash: file systems allow 255, and SQLite adds four.
_MAX_NAME = 240


def sequence_file(log_location: Path, model_name: str, version: str) -> Path:
    """Return the file of a model version's sequences; two versions never have the same."""
    name = f"{quote(model_name, safe='')}@{quote(version, safe='')}"
    if len(name) > _MAX_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    return log_location / _FOLDER / f"{name}.db"


def make_folder(cache: CacheConfig, log_location: Path, confinement: Confinement) -> None:
    """Make the state folder, if the model's sequences are kept in it; for its workers' user alone (0700). Blocks.

    Raises:
        InvalidModel: It cannot be made.
    """
    if cache.store != "file" or cache.path is not None:
        return
    folder = log_location / _FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        confinement.give(folder)
    except OSError as error:
        raise InvalidModel(
            f"handler.cache.path is not set, and the folder {folder}, which the file would be in, cannot be made:"
            f" {error.strerror}; set handler.cache.path"
        ) from error
