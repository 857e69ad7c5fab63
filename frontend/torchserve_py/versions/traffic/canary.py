"""A canary: a new version of a model that gets more requests, all, or none, by one verdict after the other. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from torchserve_py.versions.traffic.canary_rules import CanaryRules


class CanaryVerdict(Enum):
    """What a trial says of the new version."""

    unknown = "unknown"  # too few requests, or something points to its being worse
    good = "good"
    worse = "worse"


class CanaryPhase(Enum):
    """Where a canary is."""

    rising = "rising"
    promoted = "promoted"
    rolled_back = "rolled back"


#: What comes next, by the phase, whether there is a further step, and the verdict; all else stays as it is.
_NEXT: Final = {
    (CanaryPhase.rising, True, CanaryVerdict.good): CanaryPhase.rising,
    (CanaryPhase.rising, False, CanaryVerdict.good): CanaryPhase.promoted,
    (CanaryPhase.rising, True, CanaryVerdict.worse): CanaryPhase.rolled_back,
    (CanaryPhase.rising, False, CanaryVerdict.worse): CanaryPhase.rolled_back,
}


@dataclass(frozen=True, slots=True)
class Canary:
    """A new version beside the old one: at which step it is, and where."""

    rules: CanaryRules
    old: str
    step: int = 0
    phase: CanaryPhase = CanaryPhase.rising

    @property
    def weights(self) -> dict[str, int]:
        """The versions' shares of the requests, empty once the default version gets all."""
        if self.phase is not CanaryPhase.rising:
            return {}
        share = self.rules.steps[self.step]
        return {version: weight for version, weight in ((self.old, 100 - share), (self.rules.version, share)) if weight}

    def after(self, verdict: CanaryVerdict) -> Canary:
        """Return the canary as a verdict makes it."""
        has_next = self.step + 1 < len(self.rules.steps)
        phase = _NEXT.get((self.phase, has_next, verdict))
        if phase is None:
            return self
        return replace(self, phase=phase, step=self.step + (phase is CanaryPhase.rising))


class Judgement(NamedTuple):
    """A verdict, and why."""

    verdict: CanaryVerdict
    why: str
