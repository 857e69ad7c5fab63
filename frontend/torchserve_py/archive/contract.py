"""The contract of a model: how its code is called, told by the files that it consists of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

TORCHSERVE: Final = "torchserve"
TRUSS: Final = "truss"
MLSERVER: Final = "mlserver"

MLSERVER_SETTINGS: Final = "model-settings.json"
TRUSS_CONFIG: Final = "config.yaml"


def contract_of(names: Collection[str]) -> str:
    """The contract of the model in a folder whose entries are called ``names``, where no manifest names a handler.

    `model-settings.json` makes it an MLServer model. `config.yaml` makes it a Truss, unless there is a handler, which
    may well have a file of that name.
    """
    if MLSERVER_SETTINGS in names:
        return MLSERVER
    has_handler = any(name.endswith(".py") and "handler" in name for name in names)
    return TRUSS if TRUSS_CONFIG in names and not has_handler else TORCHSERVE
