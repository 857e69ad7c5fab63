"""The sequences that are over, by the names of the models, which may have been unregistered since."""

from collections.abc import Container
from typing import Final

from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.scheduling.closed import ClosedSequences

#: How many models are remembered that are not registered any more.
_MOST: Final = 1_000


class OverOfModels:
    """What the versions of each model share."""

    def __init__(self) -> None:
        self._of: dict[str, ClosedSequences] = {}

    def of(self, plan: Plan, registered: Container[str]) -> ClosedSequences | None:
        """Return what is known of the sequences of a model; None if it keeps none. Forget models that left long ago."""
        if not plan.config.stateful:
            return None
        gone = [name for name in self._of if name not in registered]
        for name in gone[: max(0, len(gone) - _MOST)]:
            del self._of[name]
        return self._of.setdefault(plan.name, ClosedSequences(plan.config.remember_ended))
