"""The versions of one model name, and which of them answers requests that name none.

TorchServe's paths have a default version: the first one, until somebody chooses another. In the Open Inference Protocol
it is the highest; unless somebody has chosen, which counts for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchserve_py.models.model import Model

_MAX_DIGITS: Final = 18


class Versions:
    """At least one.

    Attributes:
        models: By version, in the order of registration.
        default: TorchServe's default version.
        is_chosen: Whether somebody has said that it is to be that one.
    """

    def __init__(self, first: Model) -> None:
        self.models = {first.version: first}
        self.default = first
        self.is_chosen = False

    def choose(self, model: Model) -> None:
        """Somebody says which is the default."""
        self.default = model
        self.is_chosen = True

    def remove(self, model: Model) -> None:
        """One of several is not served any more."""
        del self.models[model.version]
        if self.default is model:
            self.default = next(iter(self.models.values()))
            self.is_chosen = False

    def latest(self) -> Model:
        """The default where it was chosen, else the highest version of those with a worker, or of all if none has one.

        Whole numbers are compared as such, also where points separate them; as soon as there is any other version all
        are compared as text.
        """
        if self.is_chosen or len(self.models) == 1:
            return self.default
        candidates = [model for model in self.models.values() if model.is_loaded] or list(self.models.values())
        numbers = [_numbers(model.version) for model in candidates]
        if None in numbers:
            return max(candidates, key=lambda model: model.version)
        return max(candidates, key=lambda model: _numbers(model.version) or ())


def _numbers(version: str) -> tuple[int, ...] | None:
    """``1.10`` as (1, 10); None if it is something else."""
    parts = version.split(".")
    if all(part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS for part in parts):
        return tuple(int(part) for part in parts)
    return None
