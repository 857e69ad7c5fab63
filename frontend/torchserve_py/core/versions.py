"""The versions of one model name, and the choice of the version that answers requests without a version.

In TorchServe's API that is the default version: the first one, until an operator chooses another. In the Open Inference
Protocol it is the highest version, unless an operator has chosen the default; the choice holds for all APIs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchserve_py.core.model import Model

_MAX_DIGITS: Final = 18


class Versions:
    """The versions of one model name, at least one."""

    def __init__(self, first: Model) -> None:
        self.models = {first.version: first}  # in the order of registration
        self.default = first  # TorchServe's default version
        self.is_chosen = False  # whether an operator has chosen the default version explicitly

    def choose(self, model: Model) -> None:
        """Make ``model`` the default version, as chosen by an operator."""
        self.default = model
        self.is_chosen = True

    def remove(self, model: Model) -> None:
        """Remove one of several versions."""
        del self.models[model.version]
        if self.default is model:
            self.default = next(iter(self.models.values()))
            self.is_chosen = False

    def latest(self) -> Model:
        """Return the default version if it was chosen; otherwise the highest loaded version, or the highest of all.

        Versions of integers separated by points are compared as numbers; if any version has another form, all are
        compared as text.
        """
        if self.is_chosen or len(self.models) == 1:
            return self.default
        candidates = [model for model in self.models.values() if model.is_loaded] or list(self.models.values())
        numbers = [_numbers(model.version) for model in candidates]
        if None in numbers:
            return max(candidates, key=lambda model: model.version)
        return max(candidates, key=lambda model: _numbers(model.version) or ())


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return ``1.10`` as (1, 10); None for a version of another form."""
    parts = version.split(".")
    if all(part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS for part in parts):
        return tuple(int(part) for part in parts)
    return None
