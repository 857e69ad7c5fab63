"""The contracts that models may have here, and which one the files of a model tell."""

from collections.abc import Collection, Mapping
from functools import cache

from torchserve_py.core.archive.contract import HANDLERS, Contract
from torchserve_py.plugins import contracts


@cache
def known_contracts() -> Mapping[str, Contract]:
    """Return TorchServe's contract and those of plugins, by name."""
    return {HANDLERS.name: HANDLERS, **{name: offer.contract for name, offer in contracts().items()}}


def contract_of(names: Collection[str]) -> str:
    """Return the contract of the model in a folder with files of these names, where no manifest names a handler.

    A file that no handler has tells more than one that a handler may have.
    """
    has_handler = any(name.endswith(".py") and "handler" in name for name in names)
    told = [
        each for each in known_contracts().values() if each.file in names and not (each.unless_handler and has_handler)
    ]
    return min(told, key=lambda each: each.unless_handler, default=HANDLERS).name
