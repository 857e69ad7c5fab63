"""`Manifest`: the text of an archive's MANIFEST.json."""

import json
from datetime import datetime
from enum import Enum
from typing import Any

from model_archiver.manifest_components.model import Model
from torchserve_py.version import __version__


class RuntimeType(Enum):
    """What runs a handler. `LSP` is TorchServe's C++ backend, which this server does not have."""

    PYTHON = "python"
    PYTHON3 = "python3"
    LSP = "LSP"


class Manifest:
    """The manifest of an archive, made now. Raises ValueError: there is no such runtime."""

    def __init__(self, runtime: str, model: Model) -> None:
        self.creation_time = datetime.now().strftime("%d/%m/%Y %H:%M:%S")
        self.runtime = RuntimeType(runtime)
        self.model = model
        self.archiver_version = __version__
        self.manifest_dict = {
            "createdOn": self.creation_time,
            "runtime": self.runtime.value,
            "model": model.model_dict,
            "archiverVersion": self.archiver_version,
        }

    def __to_dict__(self) -> dict[str, Any]:
        return self.manifest_dict

    def __str__(self) -> str:
        return json.dumps(self.manifest_dict, indent=2)

    __repr__ = __str__
