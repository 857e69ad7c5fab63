"""How often a canary calls an equal version worse, and how many requests it takes for one that is worse.

    python -m benchmarks.canary_trials --days 100 --runs 200

Simulated, with fixed seeds: requests come at random, versions fail by chance, times of answers have heavy tails. The
judge is the server's own (`torchserve_py.versions.traffic.trial`). Writes the tables of docs/traffic.md.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchserve_py.versions.traffic.canary import Canary, CanaryPhase, CanaryRules, CanaryVerdict
from torchserve_py.versions.traffic.trial import Side, Trial

Floats = NDArray[np.float64]
Times = Callable[[np.random.Generator, int], Floats]

_DAY: Final = 86_400
_RATES: Final = (2, 20, 100)
_SHARES: Final = (5, 50)
_FAILURES: Final = (0.001, 0.01, 0.05)


def pareto(shape: float) -> Times:
    """Return times of at least 20 ms with the tail of Pareto."""
    return lambda generator, number: 0.02 * (1 + generator.pareto(shape, number))


def log_normal(sigma: float) -> Times:
    """Return times of 20 ms in the median."""
    return lambda generator, number: 0.02 * np.exp(sigma * generator.standard_normal(number))


TIMES: Final[dict[str, Times]] = {"Pareto 1.1": pareto(1.1), "Pareto 2": pareto(2), "log-normal 1": log_normal(1)}


@dataclass(frozen=True)
class World:
    """Two versions that share requests.

    ``rate`` is of all requests per second, ``failures`` the old version's share of failures; of the new version it is
    ``more`` greater, and its answers take ``slower`` times as long.
    """

    rate: float
    failures: float
    times: Times
    more: float = 0.0
    slower: float = 1.0

    def pass_(self, generator: np.random.Generator, trial: Trial, share: float) -> tuple[int, int]:
        """Let time pass until a second with requests of the new version has ended.

        Return how many seconds that took, and how many such requests there were.
        """
        seconds = int(generator.geometric(1 - np.exp(-self.rate * share)))
        new = 0
        while not new:
            new = int(generator.poisson(self.rate * share))
        old = int(generator.poisson(self.rate * (1 - share) * seconds))
        self._fill(generator, trial.new, new, self.failures + self.more, self.slower)
        self._fill(generator, trial.old, old, self.failures, 1.0)
        trial.look(seconds)
        return seconds, new

    def _fill(self, generator: np.random.Generator, side: Side, number: int, failures: float, slower: float) -> None:
        took = (self.times(generator, number) * slower).tolist()
        failed = (generator.random(number) < failures).tolist()
        start = len(side.batches)
        for index in range(number):
            side.ended(start + index, None if failed[index] else took[index])


def trial_of(world: World, share: float, seconds: int, most: int, seed: int) -> tuple[bool, int]:
    """Run a trial at one share; return whether the new version is called worse, and after how many requests of it."""
    generator = np.random.default_rng(seed)
    trial = Trial(CanaryRules(version="2"))
    requests = time = 0
    while time < seconds and requests < most:
        passed, number = world.pass_(generator, trial, share)
        time, requests = time + passed, requests + number
        if trial.judge().verdict is CanaryVerdict.worse:
            return True, requests
    return False, requests


def canary_of(world: World, rules: CanaryRules, seed: int) -> tuple[CanaryPhase, int, int]:
    """Run a whole canary; return its end, after how many requests of the new version, and after how many seconds."""
    generator = np.random.default_rng(seed)
    trial, canary = Trial(rules), Canary(rules, "1")
    requests = time = in_step = 0
    while canary.phase is CanaryPhase.rising:
        passed, number = world.pass_(generator, trial, rules.steps[canary.step] / 100)
        time, in_step, requests = time + passed, in_step + passed, requests + number
        verdict = trial.judge().verdict
        if verdict is CanaryVerdict.worse or (verdict is CanaryVerdict.good and in_step >= rules.interval_sec):
            canary = canary.after(verdict)
            trial.begin_step()
            in_step = 0
    return canary.phase, requests, time


def false_alarms(days: int) -> Iterator[str]:
    """Yield the lines of a table: of so many days with equal versions, how many have an alarm."""
    yield "| requests/s | share | failures | latencies | days | false alarms |"
    yield "|---|---|---|---|---|---|"
    for rate, share, failures in itertools.product(_RATES, _SHARES, _FAILURES):
        name = {0.001: "Pareto 1.1", 0.01: "Pareto 2", 0.05: "log-normal 1"}[failures]
        world = World(rate, failures, TIMES[name])
        count = max(10, days * 2 // rate)
        found = sum(trial_of(world, share / 100, _DAY, 1 << 62, seed)[0] for seed in range(count))
        yield f"| {rate} | {share} % | {100 * failures:g} % | {name} | {count} | {found} |"


def detection(runs: int) -> Iterator[str]:
    """Yield the lines of a table: after how many requests a version that is worse is called so in 95 % of runs."""
    yield "| requests/s | share | the new version | requests of it | seconds |"
    yield "|---|---|---|---|---|"
    worse = [
        (f"{100 * p:g} → {100 * p + 5:g} % failures", World(0, p, TIMES["Pareto 2"], more=0.05)) for p in _FAILURES
    ]
    worse += [(f"twice as slow, {name}", World(0, 0.01, times, slower=2.0)) for name, times in TIMES.items()]
    for rate, share, (text, world) in itertools.product(_RATES, _SHARES, worse):
        made = World(rate, world.failures, world.times, world.more, world.slower)
        needed = sorted(trial_of(made, share / 100, _DAY * 10, 100_000, seed)[1] for seed in range(runs))
        number = needed[int(0.95 * runs)]
        yield f"| {rate} | {share} % | {text} | {number} | {number / (rate * share / 100):.0f} |"


def whole_canaries(runs: int) -> Iterator[str]:
    """Yield the lines of a table: what becomes of whole canaries with the default rules."""
    yield "| requests/s | the new version | rolled back | promoted | seconds until then (median) |"
    yield "|---|---|---|---|---|"
    pareto_2 = TIMES["Pareto 2"]
    versions = [("is equal", World(0, 0.01, pareto_2))]
    versions += [(f"fails 5 points more than {100 * p:g} %", World(0, p, pareto_2, more=0.05)) for p in _FAILURES]
    versions += [(f"is twice as slow, {name}", World(0, 0.01, times, slower=2.0)) for name, times in TIMES.items()]
    for rate, (text, world) in itertools.product(_RATES, versions):
        made = World(rate, world.failures, world.times, world.more, world.slower)
        ends = [canary_of(made, CanaryRules(version="2"), seed) for seed in range(runs)]
        back = sum(phase is CanaryPhase.rolled_back for phase, _, _ in ends)
        median = sorted(seconds for _, _, seconds in ends)[runs // 2]
        yield f"| {rate} | {text} | {back} | {runs - back} | {median} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=100, help="days with equal versions at 2 requests/s; fewer at more")
    parser.add_argument("--runs", type=int, default=200, help="runs with a version that is worse")
    options = parser.parse_args()
    tables = (whole_canaries(options.runs), detection(options.runs), false_alarms(options.days))
    for line in itertools.chain.from_iterable(tables):
        print(line, flush=True)


if __name__ == "__main__":
    main()
