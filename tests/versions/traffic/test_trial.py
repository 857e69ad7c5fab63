"""When a trial calls a new version worse: simulated requests with fixed seeds, no clock, no server."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torchserve_py.versions.traffic.canary import CanaryRules, CanaryVerdict
from torchserve_py.versions.traffic.evidence import Evidence, difference, exceedance, surprise, tail_difference
from torchserve_py.versions.traffic.trial import Side, Trial

Times = Callable[[random.Random], float]


def pareto(chance: random.Random) -> float:
    """Return a time that is infinite on average, almost."""
    return 0.02 * chance.paretovariate(1.1)


class World:
    """Requests of two versions, ``rate`` a second, of which the new one has a ``share``."""

    def __init__(self, seed: int, rate: float, share: float, failures: float, times: Times = pareto) -> None:
        self._chance = random.Random(seed)
        self._rate, self._share, self._failures, self._times = rate, share, failures, times
        self.trial = Trial(CanaryRules(version="2"))
        self.more, self.slower, self.burst = 0.0, 1.0, 1
        self.requests = 0

    def pass_(self, seconds: int) -> bool:
        """Let time pass; return whether the new version was called worse."""
        for _ in range(seconds):
            self.requests += self._fill(self.trial.new, self._rate * self._share, self.more, self.slower)
            self._fill(self.trial.old, self._rate * (1 - self._share), 0.0, 1.0)
            self.trial.look(1.0)
            if self.trial.judge().verdict is CanaryVerdict.worse:
                return True
        return False

    def _fill(self, side: Side, rate: float, more: float, slower: float) -> int:
        # So many come in a second: the whole number or one more.
        number = int(rate / self.burst + self._chance.random())
        for batch in range(number):
            failed = self._chance.random() < self._failures + more
            for _ in range(self.burst):
                side.ended(batch, None if failed else self._times(self._chance) * slower)
        return number * self.burst


@pytest.mark.parametrize("burst", [1, 8])
@pytest.mark.parametrize(("rate", "share", "failures"), [(2, 0.05, 0.05), (20, 0.5, 0.001), (100, 0.05, 0.01)])
def test_equal_versions_stay(rate: int, share: float, failures: float, burst: int) -> None:
    """Without a correction for many looks most of these would be called worse; a batch that fails is one failure."""
    seconds = 10_000 // rate
    alarms = 0
    for seed in range(3):
        world = World(seed, rate, share, failures)
        world.burst = burst
        alarms += world.pass_(seconds)
    assert alarms == 0


def test_the_rate_of_false_alarms_is_kept_at_every_level() -> None:
    """At odds of 5 no more than a fifth may be wrong; fair bets at the limit of what is allowed are the worst case."""
    runs, wrong = 200, 0
    for seed in range(runs):
        chance, evidence = random.Random(seed), Evidence()
        highest = 0.0
        for _ in range(300):
            evidence.bet(chance.choice((-1.0, 1.0)), 1.0)
            highest = max(highest, evidence.odds)
        wrong += highest >= 5
    assert 0 < wrong / runs <= 0.2


@pytest.mark.parametrize(
    ("rate", "share", "failures", "more", "slower", "most"),
    [
        (2, 0.05, 0.001, 0.05, 1, 800),
        (2, 0.5, 0.01, 0.05, 1, 2_000),
        (20, 0.05, 0.05, 0.05, 1, 2_000),
        (100, 0.25, 0.01, 0.05, 1, 2_500),
        (2, 0.05, 0.01, 0, 2, 250),
        (20, 0.5, 0.01, 0, 2, 1_000),
        (100, 0.05, 0.01, 0, 2, 400),
    ],
)
def test_a_version_that_is_worse_is_found_within_so_many_requests(
    rate: int, share: float, failures: float, more: float, slower: float, most: int
) -> None:
    found = 0
    for seed in range(10):
        world = World(seed, rate, share, failures)
        world.more, world.slower = more, slower
        found += world.pass_(int(most / (rate * share)))
    assert found >= 9


def test_what_goes_wrong_after_hours_is_found_nearly_as_fast() -> None:
    world = World(1, 20, 0.25, 0.01)
    assert not world.pass_(3_600)
    world.more, world.requests = 0.05, 0
    assert world.pass_(900)
    assert world.requests < 3_000


def test_a_failure_of_something_that_both_need_is_evidence_of_nothing() -> None:
    world = World(1, 20, 0.25, 0.01)
    world.pass_(60)
    world._failures = 1.0
    assert not world.pass_(600)


def test_a_dozen_requests_are_never_enough() -> None:
    trial = Trial(CanaryRules(version="2", min_requests=1))
    for number in range(100):
        trial.old.ended(number, 0.01)
    trial.look(1.0)
    count = 0
    while trial.judge().verdict is not CanaryVerdict.worse:
        count += 1
        trial.new.ended(0, None)
        trial.old.ended(0, 0.01)
        trial.look(1.0)
    assert 12 <= count <= 14
    assert trial.judge().why == f"{count} of {count} requests failed, and 0 of {100 + count} of the old version"


def test_too_few_requests_do_not_end_a_step() -> None:
    trial = Trial(CanaryRules(version="2", min_requests=10))
    for _ in range(9):
        trial.new.ended(0, 0.01)
    trial.look(1.0)
    assert trial.judge().why == "0 of 10 requests compared so far"  # the old version has had none
    trial.old.ended(0, 0.01)
    trial.look(1.0)
    assert trial.judge() == (CanaryVerdict.unknown, "9 of 10 requests compared so far")
    trial.new.ended(0, 0.01)
    trial.old.ended(0, 0.01)
    trial.look(1.0)
    found = trial.judge()
    assert found.verdict is CanaryVerdict.good
    assert found.why.startswith("0 of 10 requests failed, and 0 of 2 of the old version")
    trial.begin_step()
    assert trial.judge().why == "0 of 10 requests compared so far"


def test_a_step_does_not_end_in_doubt() -> None:
    trial = Trial(CanaryRules(version="2", min_requests=1))
    for _ in range(6):
        trial.new.ended(0, None)
        trial.old.ended(0, 0.01)
        trial.look(1.0)
    assert trial.judge().verdict is CanaryVerdict.unknown
    assert (
        trial.judge().why
        == "it may be worse, and is watched further: 6 of 6 requests failed, and 0 of 6 of the old version"
    )


def test_a_slow_tail_is_worse_although_the_median_is_not() -> None:
    def jerky(chance: random.Random) -> float:
        return 0.01 if chance.random() < 0.9 else 0.2

    trial, chance = Trial(CanaryRules(version="2")), random.Random(1)
    seconds = 0
    while trial.judge().verdict is not CanaryVerdict.worse:
        seconds += 1
        for number in range(20):
            trial.old.ended(number, 0.01 + chance.random() / 1000)
            trial.new.ended(number, jerky(chance))
        trial.look(1.0)
    assert seconds < 300
    assert trial.judge().why.startswith("99 % of the answers take up to")


@pytest.mark.parametrize("limit", [{"minRatio": 0.9}, {"maxRatio": 1.1}])
def test_a_number_of_the_handler_is_a_rule(limit: dict[str, float]) -> None:
    rules = CanaryRules.model_validate({"version": "2", "metrics": [{"name": "Score", **limit}], "minRequests": 20})
    (worse,) = limit
    for factor, verdict in ((0.5 if worse == "minRatio" else 2.0, CanaryVerdict.worse), (1.0, CanaryVerdict.good)):
        trial, chance = Trial(rules), random.Random(1)
        for number in range(100):
            for side, is_new in ((trial.new, True), (trial.old, False)):
                side.ended(number, 0.01)
                trial.metrics[0].reported(chance.gauss(10, 1) * (factor if is_new else 1), new=is_new)
            trial.look(1.0)
        found = trial.judge()
        assert found.verdict is verdict
        assert "Score is" in found.why
    # A version that reports nothing does not pass.
    trial = Trial(rules)
    for number in range(100):
        trial.new.ended(number, 0.01)
        trial.old.ended(number, 0.01)
    trial.look(1.0)
    assert trial.judge() == (CanaryVerdict.unknown, "0 of 20 values of Score compared so far")


@pytest.mark.parametrize(
    ("share", "verdict"), [(1.0, CanaryVerdict.worse), (0.1, CanaryVerdict.worse), (0.0, CanaryVerdict.good)]
)
def test_answers_that_differ_are_a_rule(share: float, verdict: CanaryVerdict) -> None:
    trial, chance = (
        Trial(CanaryRules.model_validate({"version": "2", "minRequests": 50, "shadow": {}})),
        random.Random(3),
    )
    assert trial.differences is not None
    for number in range(100):
        trial.new.ended(number, 0.01)
        trial.old.ended(number, 0.01)
        trial.look(1.0)
    assert trial.judge().why == "0 of 50 answers compared so far"
    for _ in range(100):
        trial.differences.compared(is_same=chance.random() >= share)
        trial.look(1.0)
    assert trial.judge().verdict is verdict


def test_deaths_are_a_rule() -> None:
    def deaths_until_worse(workers: int, old_workers: int) -> int:
        trial = Trial(CanaryRules(version="2"))
        for count in range(1, 100):
            assert trial.deaths.died(1, 0, workers, old_workers)
            trial.look(1.0)
            if trial.judge().verdict is CanaryVerdict.worse:
                assert trial.judge().why == f"workers of it died {count} times, and those of the old version 0 times"
                return count
        raise AssertionError

    assert deaths_until_worse(1, 1) <= 14
    assert deaths_until_worse(1, 4) <= 6
    # Both versions die as often, each of their workers.
    chance, trial = random.Random(1), Trial(CanaryRules(version="2"))
    for _ in range(2_000):
        is_new = chance.random() < 0.2
        trial.deaths.died(int(is_new), int(not is_new), 1, 4)
        trial.look(10.0)
        assert trial.judge().verdict is not CanaryVerdict.worse
    assert not trial.deaths.died(0, 1, 1, 4)
    assert not trial.deaths.died(0, 0, 1, 4)


def test_memory_is_a_rule_that_is_measured_twice() -> None:
    trial = Trial(CanaryRules.model_validate({"version": "2", "minRequests": 1, "maxMemoryRatio": 1.5}))
    trial.new.ended(0, 0.01)
    trial.old.ended(0, 0.01)
    trial.look(1.0)
    assert trial.memory is not None
    assert trial.judge().why == "the memory of workers has not been measured in this step"
    trial.memory.measured(140e6, 100e6)
    assert trial.judge().verdict is CanaryVerdict.good
    trial.memory.measured(160e6, 100e6)
    assert trial.judge().verdict is CanaryVerdict.unknown
    trial.memory.measured(160e6, 100e6)
    assert trial.judge() == (CanaryVerdict.worse, "a worker has 160 MB of memory, and 100 MB of the old version")


SHARES = some.lists(some.floats(0, 1), min_size=1, max_size=20)


@given(SHARES, SHARES, some.floats(0, 1))
def test_no_observation_costs_more_than_the_stake(new: list[float], old: list[float], allowed: float) -> None:
    assert -1 - 1e-9 <= difference(new, old, allowed) <= 1
    assert -1 <= exceedance(new, old, allowed) <= 1
    assert -1 <= tail_difference(new, old, 0.5, 2) <= 1
    assert surprise(0, 0.2) == -1


def test_ranks_and_ties() -> None:
    assert exceedance([1.0], [1.0], 0) == 0
    assert exceedance([1e9], [1.0], 0) == 1
    assert exceedance([1.4], [1.0], 0.5) == -1
    assert exceedance([-10.0], [-10.0], 0.1) == -1  # a tolerance is one for negative numbers, too
    assert exceedance([1, 2, 3], [1, 2, 3], 0) == 0


def test_the_first_bets_are_not_the_last() -> None:
    """The capital that is paid out later is there although the first is lost."""
    evidence = Evidence()
    for _ in range(10_000):
        evidence.bet(-0.5, 1.0)
    for _ in range(30):
        evidence.bet(1.0, 1.0)
    assert evidence.odds > 400
