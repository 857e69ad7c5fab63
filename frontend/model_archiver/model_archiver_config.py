"""`ModelArchiverConfig`: the flags of `torch-model-archiver` as an object."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field, fields
from pathlib import Path

from torchserve_py.archives.archiver.pack import PackOptions


@dataclass
class ModelArchiverConfig(PackOptions):
    """What to pack. The fields have the names and the meaning of the command's flags; None means not given."""

    export_path: str = field(default_factory=lambda: str(Path.cwd()))

    @classmethod
    def from_args(cls, args: Namespace) -> ModelArchiverConfig:
        """Take the fields from an argparse result that has all of them."""
        return cls(**{item.name: getattr(args, item.name) for item in fields(cls)})
