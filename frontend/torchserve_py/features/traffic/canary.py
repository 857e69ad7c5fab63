"""Whether a new version of a model, its canary, gets more requests, all, or none: by what both versions did. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from torchserve_py.features.traffic.answer_times import Record
from torchserve_py.features.traffic.traffic_body import CanaryRules


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
    """Compare what the old and the new version did lately.

    The new version is worse as soon as so many requests have failed that no further answer among the fewest that it
    needs could mend it. A quantile counts once both versions have so many answers that one may be slower.
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
    if not (new.succeeded and old.succeeded):
        return Judgement(Verdict.good, f"{new.requests} requests, none to compare with")
    text = f"an answer takes {_ms(new.mean)}, and {_ms(old.mean)} of the old version"
    if new.mean > old.mean * rules.max_latency_ratio:
        return Judgement(Verdict.worse, text)
    ours, theirs = new.quantile(rules.quantile), old.quantile(rules.quantile)
    if ours is None or theirs is None:
        return Judgement(Verdict.good, text)
    slow = f"{rules.quantile * 100:g} % of the answers take up to {_ms(ours)}, and {_ms(theirs)} of the old version"
    if ours > theirs * rules.max_quantile_ratio:
        return Judgement(Verdict.worse, slow)
    return Judgement(Verdict.good, f"{text}; {slow}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
