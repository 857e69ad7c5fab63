"""The models that are measured: for each, how it gets into a model store, and a request that proves that it is up."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "benchmarks" / "models"


@dataclass(frozen=True)
class Probe:
    """One HTTP request, and what its answer must be."""

    path: str
    body: bytes
    is_right: Callable[[bytes], bool]
    headers: dict[str, str] = field(default_factory=dict)


class BenchmarkModel(Protocol):
    """A model with one worker."""

    @property
    def name(self) -> str:
        """Under which it is served."""

    @property
    def probe(self) -> Probe:
        """The request that proves that it is up and right."""

    def put_into(self, store: Path) -> str:
        """Write it into the folder `store`. Returns the name of its file or folder there."""


@dataclass(frozen=True)
class HandlerModel:
    """A TorchServe handler; packed as a .mar file."""

    name: str
    handler: Path
    config: dict[str, Any]
    probe: Probe

    def put_into(self, store: Path) -> str:
        """Write the archive."""
        manifest = {
            "createdOn": "01/01/2026 00:00:00",
            "runtime": "python",
            "model": {
                "modelName": self.name,
                "handler": self.handler.name,
                "modelVersion": "1.0",
                "configFile": "model-config.yaml",
            },
            "archiverVersion": "0.12.0",
        }
        path = store / f"{self.name}.mar"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            archive.writestr("model-config.yaml", yaml.safe_dump({"minWorkers": 1, "maxWorkers": 1} | self.config))
            archive.write(self.handler, self.handler.name)
        return path.name


@dataclass(frozen=True)
class FolderModel:
    """A model of another contract; served from its own folder."""

    name: str
    source: Path
    probe: Probe

    def put_into(self, store: Path) -> str:
        """Copy the folder."""
        shutil.copytree(self.source, store / self.name, ignore=shutil.ignore_patterns("__pycache__"))
        return self.name
