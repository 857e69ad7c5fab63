"""The packages that a Truss uses from outside of its folder: an archive takes them in, as Truss's own build does."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from torchserve_py.archive.artifacts import Artifacts
from torchserve_py.archive.contract import TRUSS_CONFIG
from torchserve_py.archive.errors import PackError

_DEFAULT_PACKAGES_DIR = "packages"


def add_external_packages(artifacts: Artifacts) -> None:
    """Add the contents of each of `external_package_dirs` to the bundled packages, so that they are imported as before.

    Relative ones start from the folder of `config.yaml`. Raises PackError, FileNotFoundError.
    """
    config_file = artifacts.file(PurePosixPath(TRUSS_CONFIG))
    assert config_file is not None
    config = _read(config_file)
    bundled = PurePosixPath(config.get("bundled_packages_dir") or _DEFAULT_PACKAGES_DIR)
    for external in config.get("external_package_dirs") or ():
        artifacts.add_folder(config_file.parent / external, under=bundled)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_bytes()) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise PackError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise PackError(f"{path} must hold 'key: value' lines.")
    return config
