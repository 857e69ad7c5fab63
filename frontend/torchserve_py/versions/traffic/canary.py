"""A canary: a new version of a model that gets more requests, all, or none, by one verdict after the other. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from torchserve_py.versions.traffic.canary_rules import CanaryRules


class Verdict(Enum):
    """What a trial says of the new version."""

    unknown = "unknown"  # too few requests, or something points to its being worse
    good = "good"
    worse = "worse"


class Phase(Enum):
    """Where a canary is."""

    rising = "rising"
    promoted = "promoted"
    rolled_back = "rolled back"


#: What comes next, by the phase, whether there is a further step, and the verdict; all else stays as it is.
_NEXT: Final = {
    (Phase.rising, True, Verdict.good): Phase.rising,
    (Phase.rising, False, Verdict.good): Phase.promoted,
    (Phase.rising, True, Verdict.worse): Phase.rolled_back,
    (Phase.rising, False, Verdict.worse): Phase.rolled_back,
}


@dataclass(frozen=True, slots=True)
class Canary:
    """A new version beside the old one: at which step it is, and where."""

    rules: CanaryRules
    old: str
    step: int = 0
    phase: Phase = Phase.rising

    @property
    def weights(self) -> dict[str, int]:
        """The versions' shares of the requests, empty once the default version gets all."""
        if self.phase is not Phase.rising:
            return {}
        share = self.rules.steps[self.step]
        return {version: weight for version, weight in ((self.old, 100 - share), (self.rules.version, share)) if weight}

    def after(self, verdict: Verdict) -> Canary:
        """Return the canary as a verdict makes it."""
        has_next = self.step + 1 < len(self.rules.steps)
        phase = _NEXT.get((self.phase, has_next, verdict))
        if phase is None:
            return self
        return replace(self, phase=phase, step=self.step + (phase is Phase.rising))


class Judgement(NamedTuple):
    """A verdict, and why."""

    verdict: Verdict
    why: str
