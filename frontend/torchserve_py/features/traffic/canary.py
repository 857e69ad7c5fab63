"""Whether a new version of a model, its canary, gets more requests, all, or none: by what both versions did. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from torchserve_py.features.traffic.traffic_body import CanaryRules


class Record(NamedTuple):
    """What a version did in a time: how many requests it answered and failed, and how long the answers took in all."""

    succeeded: int
    failed: int
    seconds: float

    @property
    def requests(self) -> int:
        """All requests."""
        return self.succeeded + self.failed

    @property
    def failure_share(self) -> float:
        """The share of requests that failed, 0 without requests."""
        return self.failed / self.requests if self.requests else 0.0

    def since(self, earlier: Record) -> Record:
        """Return what was done after an earlier record of the same version."""
        return Record(self.succeeded - earlier.succeeded, self.failed - earlier.failed, self.seconds - earlier.seconds)


class Verdict(Enum):
    """What a comparison says of the new version."""

    unknown = "unknown"  # too few requests
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


def judge(rules: CanaryRules, old: Record, new: Record) -> Judgement:
    """Compare what the old and the new version did in the same time.

    The new version is worse as soon as so many requests have failed that no further answer among the fewest that it
    needs could mend it.
    """
    fewest = max(new.requests, rules.min_requests)
    most_failures = (old.failure_share + rules.max_failure_increase) * fewest
    if new.failed > most_failures:
        shares = (
            f"{new.failed} of {new.requests} requests failed, and {old.failed} of {old.requests} of the old version"
        )
        return Judgement(Verdict.worse, shares)
    if new.requests < rules.min_requests:
        return Judgement(Verdict.unknown, f"{new.requests} of {rules.min_requests} requests so far")
    if new.succeeded and old.succeeded:
        ours, theirs = new.seconds / new.succeeded, old.seconds / old.succeeded
        text = f"an answer takes {ours * 1000:.3g} ms, and {theirs * 1000:.3g} ms of the old version"
        worse = ours > theirs * rules.max_latency_ratio
        return Judgement(Verdict.worse if worse else Verdict.good, text)
    return Judgement(Verdict.good, f"{new.requests} requests, none to compare with")
