"""The contracts that models may have here, and which one the files of a model tell."""

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from torchserve_py.core.archive.contract import HANDLERS, Contract
from torchserve_py.plugins import contracts

_CODE = ".py"
#: How the names of weights end that can be run without code.
_WEIGHTS = (".pt", ".pth", ".pt2")


@cache
def known_contracts() -> Mapping[str, Contract]:
    """Return TorchServe's contract and those of plugins, by name."""
    return {HANDLERS.name: HANDLERS, **{name: offer.contract for name, offer in contracts().items()}}


def telling_files(root: Path) -> list[str]:
    """Return the files deeper in a model's folder that tell a contract. Raises OSError."""
    known = [name for each in known_contracts().values() for name in (each.file, *each.other_files)]
    return [name for name in known if "/" in name and (root / name).is_file()]


def contract_of(names: Collection[str], *, has_default_handler: bool = False) -> str:
    """Return the contract of the model in a folder with files of these names, where no manifest names a handler.

    A file that no handler has tells more than one that a handler may have. A folder with weights and no code is of the
    contract that runs weights by themselves.
    """
    has_handler = any(name.endswith(_CODE) and "handler" in name for name in names)
    has_only_weights = any(name.endswith(_WEIGHTS) for name in names) and not any(
        each.endswith(_CODE) for each in names
    )
    told = [
        each
        for each in known_contracts().values()
        if not (each.unless_handler and has_handler)
        and not (each.unless_default_handler and has_default_handler)
        and ((has_only_weights and each.without_code) or not {each.file, *each.other_files}.isdisjoint(names))
    ]
    return min(told, key=lambda each: each.unless_handler, default=HANDLERS).name
