"""A canary: a new version of a model that gets more requests, all, or none, by one verdict after the other. Pure.

Its rules say which steps it takes, and what makes the new version worse than the old one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Percent of the requests; 100 is refused by words of its own.
Share = Annotated[int, Field(ge=1, le=100, json_schema_extra={"maximum": 99})]
Ratio = Annotated[float, Field(gt=0, le=1000)]

#: Keys of earlier releases, and what holds instead.
_GONE: Final = {
    "windowSec": "all requests since the canary has begun count, and those of late most",
}


class ClosedBody(BaseModel):
    """An object of which each key is known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class MetricRule(ClosedBody):
    """By how much a number that the handler reports may differ: `metrics` of the rules.

    The new version is worse if its values are typically more than ``max_ratio`` times those of the old one, or less
    than ``min_ratio`` times.
    """

    name: str = Field(min_length=1, max_length=200)
    max_ratio: Annotated[Ratio | None, Field(alias="maxRatio")] = None
    min_ratio: Annotated[Ratio | None, Field(alias="minRatio")] = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.max_ratio is None) == (self.min_ratio is None):
            raise ValueError("it must have maxRatio or minRatio, and not both")
        return self


class ShadowRule(ClosedBody):
    """How many answers may differ, of the requests which the old version answers and the new one runs as well.

    That is ``percent`` of these requests; ``tolerance`` is that of `traffic_body.ShadowRules`.
    """

    percent: Annotated[float, Field(gt=0, le=100)] = 100
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None
    max_different: Annotated[float, Field(alias="maxDifferent", gt=0, lt=1)] = 0.01


class CanaryRules(ClosedBody):
    """How a new version gets more and more of the requests, beside the default version.

    ``steps`` are its shares in percent, each for ``interval_sec`` seconds at least. It goes on once ``min_requests`` of
    it have been compared in that time, and nothing points to its being worse. It is worse if its share of failures is
    more than ``max_failure_increase`` higher; if its answers typically take more than ``max_latency_ratio`` times as
    long; if more of them take ``max_quantile_ratio`` times as long as all but the share ``quantile`` of the old
    version's; if its workers die more often, or have more than ``max_memory_ratio`` times as much memory. After
    ``deadline_sec`` it is rolled back in any case.
    """

    version: str = Field(min_length=1)
    steps: list[Share] = Field(default=[5, 25, 50], min_length=1, max_length=20)
    interval_sec: Annotated[int, Field(alias="intervalSec", ge=1, le=86_400)] = 60
    min_requests: Annotated[int, Field(alias="minRequests", ge=1, le=1_000_000)] = 600
    deadline_sec: Annotated[int, Field(alias="deadlineSec", ge=1, le=2_592_000)] = 86_400
    max_failure_increase: Annotated[float, Field(alias="maxFailureIncrease", ge=0, le=1)] = 0.01
    max_latency_ratio: Annotated[Ratio, Field(alias="maxLatencyRatio")] = 1.5
    quantile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.99
    max_quantile_ratio: Annotated[Ratio, Field(alias="maxQuantileRatio")] = 2
    max_death_ratio: Annotated[Ratio, Field(alias="maxDeathRatio")] = 1
    max_memory_ratio: Annotated[Ratio | None, Field(alias="maxMemoryRatio")] = None
    metrics: list[MetricRule] = Field(default=[], max_length=10)
    shadow: ShadowRule | None = None

    @model_validator(mode="before")
    @classmethod
    def _knows(cls, body: Any) -> Any:
        gone = [key for key in _GONE if isinstance(body, dict) and key in body]
        if gone:
            raise ValueError("; ".join(f"{key} is not used any more, leave it out: {_GONE[key]}" for key in gone))
        return body

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"steps must rise, and are {self.steps}")
        if self.steps[-1] == 100:
            raise ValueError(
                "steps must be below 100, where the old version would have no requests to compare with; leave 100 out:"
                " after the last step the version becomes the default one"
            )
        return self


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
