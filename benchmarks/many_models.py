"""Models that all have the same code and the same weights, for what depends on how many models there are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.benchmark_models import Probe

#: Reads its weights into memory of its own.
HANDLER = """
from pathlib import Path


class Handler:
    def initialize(self, context):
        self.weights = (Path(context.system_properties["model_dir"]) / "weights.bin").read_bytes()

    def handle(self, data, context):
        return [str(len(self.weights))] * len(data)
"""


@dataclass(frozen=True)
class ManyModels:
    """Folders with models that are called ``m0`` and so on; the first is the one that proves that the server is up."""

    count: int
    size: int  # bytes of weights
    config: dict[str, Any]
    name: str = "m0"

    @property
    def probe(self) -> Probe:
        """A request for the first one."""
        return Probe("/predictions/m0", b"x", str(self.size).encode().__eq__)

    def put_into(self, store: Path) -> str:
        """Write the folders, whose weights are one file on the disk. Returns all as `load_models` lists them."""
        weights = store.parent / "weights.bin"
        with weights.open("wb") as file:
            for _ in range(self.size // 2**20):
                file.write(os.urandom(2**20))
            file.write(os.urandom(self.size % 2**20))
        for number in range(self.count):
            folder = store / f"m{number}"
            folder.mkdir()
            (folder / "handler.py").write_text(HANDLER)
            (folder / "model-config.yaml").write_text(yaml.safe_dump(self.config))
            os.link(weights, folder / weights.name)
        return ",".join(["m0", *(f"m{number}=m{number}" for number in range(1, self.count))])
