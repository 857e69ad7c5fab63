"""A trial: what both versions of a canary did so far, and whether the new one is worse by any of its rules. Pure.

Each rule gathers evidence of its own. One is enough for a verdict, so each has its part of the rate of false alarms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from torchserve_py.versions.traffic.canary import CanaryRules, CanaryVerdict, Judgement, MetricRule
from torchserve_py.versions.traffic.evidence import Evidence, difference, exceedance, surprise, tail_difference
from torchserve_py.versions.traffic.version_record import PRECISION, VersionRecord

#: With what probability a version that is not worse is called so within a day, by all rules together.
FALSE_ALARMS: Final = 0.01
#: With such odds a rule has no verdict yet, but the step does not end.
_DOUBT: Final = 3.0
#: How many observations of a second, at most, count as independent of each other.
_MOST_BETS: Final = 4
#: What is kept of a version while the other one has nothing to be compared with.
_MOST_KEPT: Final = 2000
#: How often in succession memory is measured before it counts.
_MEASUREMENTS: Final = 2


@dataclass
class Side:
    """What one version did.

    Attributes:
        total: All of its requests since the canary has begun, but for the latest.
        batches: Of the latest requests, how many each batch had, and how many of them failed.
        times: How long the latest answers took (seconds).
    """

    total: VersionRecord = field(default_factory=VersionRecord)
    batches: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))

    def ended(self, batch: Hashable, seconds: float | None) -> None:
        """Count a request of a batch that was answered in so many seconds, or failed (None)."""
        count, failed = self.batches.get(batch, (0, 0))
        self.batches[batch] = count + 1, failed + (seconds is None)
        if len(self.batches) > _MOST_KEPT:
            del self.batches[next(iter(self.batches))]
        if seconds is not None:
            self.times.append(seconds)


class Rule(ABC):
    """One reason for which a version may be worse.

    Attributes:
        seen: How many observations of the new version were compared in the present step.
    """

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.seen = 0
        self._waited = 0.0

    @property
    def odds(self) -> float:
        """How many times more likely than chance."""
        return self.evidence.odds

    @abstractmethod
    def look(self, seconds: float) -> None:
        """Weigh what has come in the last ``seconds``."""

    @abstractmethod
    def text(self) -> str:
        """Return what was found, for people; empty if there is nothing."""

    def lacks(self, fewest: int) -> str:
        """Return what is missing before the step may end; empty if nothing is."""
        return f"{self.seen} of {fewest} requests compared so far" if self.seen < fewest else ""

    def _bet(self, observed: Sequence[float]) -> None:
        for number in observed:
            self.evidence.bet(number, self._waited)
            self._waited = 0.0


class Failures(Rule):
    """More of the new version's requests fail."""

    def __init__(self, new: Side, old: Side, allowed: float) -> None:
        super().__init__()
        self._new, self._old, self._allowed = new, old, allowed

    def look(self, seconds: float) -> None:
        self._waited += seconds
        new, old = self._new, self._old
        if not (new.batches and old.batches):
            return
        shares = [[failed / count for count, failed in side.batches.values()] for side in (new, old)]
        bets = min(_MOST_BETS, *map(len, shares))
        pairs = zip(*(_parts(each, bets) for each in shares), strict=True)
        self._bet([difference(ours, theirs, self._allowed) for ours, theirs in pairs])
        self.seen += sum(count for count, _ in new.batches.values())
        for side in (new, old):
            side.total.failed += sum(failed for _, failed in side.batches.values())
            side.total.succeeded += sum(count - failed for count, failed in side.batches.values())
            side.batches.clear()

    def text(self) -> str:
        new, old = self._new.total, self._old.total
        return f"{new.failed} of {new.requests} requests failed, and {old.failed} of {old.requests} of the old version"


class SlowAnswers(Rule):
    """An answer of the new version typically takes longer; and more of them take very long, see `SlowTail`."""

    def __init__(self, new: Side, old: Side, ratio: float, tail: SlowTail) -> None:
        super().__init__()
        self._new, self._old, self._allowed, self._tail = new, old, ratio - 1, tail

    def look(self, seconds: float) -> None:
        self._waited += seconds
        new, old = self._new, self._old
        if not (new.times and old.times):
            return
        self._tail.compare(new.times, old.times, self._waited)
        self._bet([exceedance(new.times, old.times, self._allowed)])
        for side in (new, old):
            for time in side.times:
                side.total.time(time)
            side.times.clear()

    def lacks(self, fewest: int) -> str:
        """Return nothing: versions that fail all requests alike have no answers."""
        return ""

    def text(self) -> str:
        ours, theirs = self._new.total.quantile(0.5), self._old.total.quantile(0.5)
        if ours is None or theirs is None:
            return ""
        return f"half of the answers take up to {_ms(ours)}, and {_ms(theirs)} of the old version"


class SlowTail(Rule):
    """More answers of the new version take much longer than almost all of the old version's."""

    def __init__(self, new: Side, old: Side, quantile: float, ratio: float) -> None:
        super().__init__()
        self._new, self._old, self._quantile, self._ratio = new, old, quantile, ratio

    def compare(self, new: Sequence[float], old: Sequence[float], seconds: float) -> None:
        """Weigh how long answers took; the limit is that of the earlier ones."""
        self._waited += seconds
        if (limit := self._old.total.quantile(self._quantile)) is not None:
            self._bet([tail_difference(new, old, limit * (1 + PRECISION), self._ratio)])

    def look(self, seconds: float) -> None:
        """Do nothing; `compare` is called."""

    def lacks(self, fewest: int) -> str:
        return ""

    def text(self) -> str:
        ours, theirs = self._new.total.quantile(self._quantile), self._old.total.quantile(self._quantile)
        if ours is None or theirs is None:
            return ""
        share = f"{self._quantile * 100:g} % of the answers take up to"
        return f"{share} {_ms(ours)}, and {_ms(theirs)} of the old version"


class MetricValues(Rule):
    """A number that the handler reports is typically greater, or smaller."""

    def __init__(self, rule: MetricRule) -> None:
        super().__init__()
        self._rule = rule
        self._sign, self._allowed = (-1, 1 - rule.min_ratio) if rule.min_ratio is not None else (1, _over(rule))
        self._new, self._old = (deque[float](maxlen=_MOST_KEPT) for _ in range(2))
        self._totals = [(0, 0.0), (0, 0.0)]

    @property
    def name(self) -> str:
        """The metric."""
        return self._rule.name

    def reported(self, value: float, *, new: bool) -> None:
        """Take a value."""
        (self._new if new else self._old).append(self._sign * value)

    def look(self, seconds: float) -> None:
        self._waited += seconds
        if not (self._new and self._old):
            return
        self._bet([exceedance(self._new, self._old, self._allowed)])
        self.seen += len(self._new)
        for index, values in enumerate((self._new, self._old)):
            count, total = self._totals[index]
            self._totals[index] = count + len(values), total + self._sign * sum(values)
            values.clear()

    def lacks(self, fewest: int) -> str:
        return f"{self.seen} of {fewest} values of {self.name} compared so far" if self.seen < fewest else ""

    def text(self) -> str:
        if not self._totals[0][0]:
            return ""
        ours, theirs = (total / count for count, total in self._totals)
        return f"{self.name} is {ours:.4g} on average, and {theirs:.4g} of the old version"


class Differences(Rule):
    """Answers of the new version differ from those that the old one gives to the same requests."""

    def __init__(self, allowed: float) -> None:
        super().__init__()
        self._allowed = allowed
        self._latest: list[bool] = []
        self._total = self._different = 0

    def compared(self, *, is_same: bool) -> None:
        """Take what came of a comparison."""
        self._latest.append(not is_same)

    def look(self, seconds: float) -> None:
        self._waited += seconds
        found, self._latest = self._latest, []
        for part in _parts(found, min(_MOST_BETS, len(found))):
            self._bet([surprise(sum(part) / len(part), self._allowed)])
        self.seen += len(found)
        self._total += len(found)
        self._different += sum(found)

    def lacks(self, fewest: int) -> str:
        return f"{self.seen} of {fewest} answers compared so far" if self.seen < fewest else ""

    def text(self) -> str:
        return f"{self._different} of {self._total} answers differ from those of the old version"


class Deaths(Rule):
    """The new version's workers die more often, each of them."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self._ratio = ratio
        self.new = self.old = 0

    def died(self, new: int, old: int, workers: int, old_workers: int) -> bool:
        """Take how many workers have died, of how many; return whether those of the new version died more often."""
        self.new, self.old = self.new + new, self.old + old
        if not (new or old) or not workers:
            return bool(new)
        expected = self._ratio * workers / (self._ratio * workers + old_workers)
        observed = (new * surprise(1, expected) + old * surprise(0, expected)) / (new + old)
        self._bet([observed])
        return observed > 0

    def look(self, seconds: float) -> None:
        self._waited += seconds

    def lacks(self, fewest: int) -> str:
        return ""

    def text(self) -> str:
        if not self.new:
            return ""
        return f"workers of it died {self.new} times, and those of the old version {self.old} times"


class MemoryRule(Rule):
    """The new version's workers have more memory, each of them; this is measured, and no matter of chance."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self._ratio = ratio
        self._beyond = 0
        self._latest = (0.0, 0.0)

    @property
    def odds(self) -> float:
        return float("inf") if self._beyond >= _MEASUREMENTS else _DOUBT if self._beyond else 0.0

    def measured(self, new: float, old: float) -> None:
        """Take how many bytes a worker has on average."""
        self.seen += 1
        self._latest = new, old
        self._beyond = self._beyond + 1 if new > old * self._ratio else 0

    def look(self, seconds: float) -> None:
        """Do nothing: a measurement counts when it comes."""

    def lacks(self, fewest: int) -> str:
        return "" if self.seen else "the memory of workers has not been measured in this step"

    def text(self) -> str:
        ours, theirs = (size / 1e6 for size in self._latest)
        return f"a worker has {ours:.4g} MB of memory, and {theirs:.4g} MB of the old version" if self.seen else ""


class Trial:
    """The rules of one canary, and what they have found.

    Attributes:
        new, old: What both versions did.
        deaths, memory, differences, metrics: The rules that are told of more than requests, as far as there are.
    """

    def __init__(self, rules: CanaryRules) -> None:
        self._rules = rules
        self.new, self.old = Side(), Side()
        tail = SlowTail(self.new, self.old, rules.quantile, rules.max_quantile_ratio)
        self.deaths = Deaths(rules.max_death_ratio)
        self.memory = None if rules.max_memory_ratio is None else MemoryRule(rules.max_memory_ratio)
        self.differences = None if rules.shadow is None else Differences(rules.shadow.max_different)
        self.metrics = [MetricValues(each) for each in rules.metrics]
        self._every = [
            Failures(self.new, self.old, rules.max_failure_increase),
            SlowAnswers(self.new, self.old, rules.max_latency_ratio, tail),
            tail,
            self.deaths,
            *self.metrics,
            *(rule for rule in (self.differences, self.memory) if rule is not None),
        ]
        #: The odds with which a rule has a verdict.
        self.enough = sum(not isinstance(rule, MemoryRule) for rule in self._every) / FALSE_ALARMS

    def begin_step(self) -> None:
        """Begin a step: what is needed before its end is counted anew."""
        for rule in self._every:
            rule.seen = 0

    def look(self, seconds: float) -> None:
        """Weigh what has come in the last ``seconds``."""
        for rule in self._every:
            rule.look(seconds)

    def judge(self) -> Judgement:
        """Return whether the new version is worse, is good enough for the next step, or must be watched further."""
        worst = max(self._every, key=lambda rule: rule.odds)
        if worst.odds >= self.enough:
            return Judgement(CanaryVerdict.worse, worst.text())
        if missing := next(filter(None, (rule.lacks(self._rules.min_requests) for rule in self._every)), ""):
            return Judgement(CanaryVerdict.unknown, missing)
        if worst.odds >= _DOUBT:
            return Judgement(CanaryVerdict.unknown, f"it may be worse, and is watched further: {worst.text()}")
        return Judgement(CanaryVerdict.good, "; ".join(filter(None, (rule.text() for rule in self._every))))


def _parts(items: Sequence[float], number: int) -> Iterator[Sequence[float]]:
    """Yield so many parts of a sequence, about equally long, in its order."""
    for index in range(number):
        yield items[index * len(items) // number : (index + 1) * len(items) // number]


def _over(rule: MetricRule) -> float:
    assert rule.max_ratio is not None
    return rule.max_ratio - 1


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
