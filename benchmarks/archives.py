"""The models that are measured, packed as the .mar files that both servers read."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
ECHO_HANDLER = ROOT / "handlers" / "echo" / "echo_handler.py"
STATEFUL_HANDLER = ROOT / "handlers" / "stateful" / "stateful_handler.py"
STREAM_HANDLER = ROOT / "benchmarks" / "models" / "stream_handler.py"


@dataclass(frozen=True)
class BenchmarkModel:
    """A handler with one worker and a configuration, and a request that proves that it is up and right."""

    name: str
    handler: Path
    config: dict[str, Any]
    body: bytes
    answer: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def pack(self, folder: Path) -> Path:
        """Write the archive into `folder`. Returns its path."""
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
        path = folder / f"{self.name}.mar"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            archive.writestr("model-config.yaml", yaml.safe_dump({"minWorkers": 1, "maxWorkers": 1} | self.config))
            archive.write(self.handler, self.handler.name)
        return path
