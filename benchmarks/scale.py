"""What scheduling costs with many workers and many sequences: the real scheduler on a simulated clock.

    python -m benchmarks.scale [--workers 1000] [--open 10000 100000 1000000] [--sequences 10000000] [--rate 20000]

The scheduler has neither a clock nor I/O. So a simulation consists of the scheduler, a clock, and a heap of the moments
at which workers answer. How long a batch takes was recorded (GRU_MS). For each number of open sequences a line says how
much memory a sequence takes, and how much processor time a step. The last line is of a run in which `--sequences` are
opened in all: each has two steps and then ends, so that the number of open ones stays as it is.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import psutil

from benchmarks.benchmark_models import ROOT

sys.path.insert(0, str(ROOT / "frontend"))

from torchserve_py.core.scheduling.effects import Effects, EndSequence, Finish, Send
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.scheduler import Scheduler

BATCH = 32
STEPS = 100_000  # that are measured per number of open sequences
CHURNED = 100_000  # open sequences during the last run
GRU_MS = (
    (0.31, 0.31, 0.31, 0.31, 0.31, 0.32, 0.33, 0.38, 0.42, 0.48),
    (1.12, 1.17, 1.21, 1.25, 1.29, 1.33, 1.37, 1.44, 1.53, 1.67),
)
"""Milliseconds that a GRU cell and a linear layer (512 wide) took for 1 and for 32 sequences on one core: deciles."""


class Simulation:
    """A scheduler with its workers and its clock.

    spent   seconds of processor time that the scheduler has taken
    worst   the most that one event has taken
    """

    def __init__(self, workers: int, capacity: int, rate: float) -> None:
        self.now = self.spent = self.worst = 0.0
        self._interval = 1.0 / rate
        self._numbers = count()
        self._answers: list[tuple[float, int, list[Job]]] = []
        self._random = random.Random(1)
        limits = SequencePolicy(max_idle=1e6, queue_size=8, max_sequences=capacity)
        self.scheduler = Scheduler(Policy(BATCH, max_batch_delay=0.005, sequences=limits))
        self._event(self.scheduler.set_workers, workers, self.now)
        for number in range(workers):
            self._event(self.scheduler.worker_up, f"worker-{number}", self.now)
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.spent = self.worst = 0.0

    def step(self, sequence_id: str, *, ends: bool = False) -> None:
        """Let the time pass until the next step comes, and submit it."""
        moment = self.now + self._interval
        while (due := self._next()) <= moment:
            self.now = due
            if self._answers and self._answers[0][0] <= due:
                jobs = heapq.heappop(self._answers)[2]
                self._event(self.scheduler.parts, [(job.id, False) for job in jobs], due)
            else:
                self._event(self.scheduler.tick, due)
        self.now = moment
        self._event(self.scheduler.submit, Job(f"job-{next(self._numbers)}", sequence_id, ends_sequence=ends), moment)

    def _next(self) -> float:
        answer = self._answers[0][0] if self._answers else float("inf")
        return min(answer, self.scheduler.next_deadline() or float("inf"))

    def _event(self, event: Callable[..., Effects], *arguments: Any) -> None:
        started = time.thread_time()
        effects = event(*arguments)
        spent = time.thread_time() - started - CLOCK
        self.spent += spent
        self.worst = max(self.worst, spent)
        for effect in effects:
            if isinstance(effect, Send):
                answered_at = self.now + self._service(len(effect.jobs))
                heapq.heappush(self._answers, (answered_at, next(self._numbers), list(effect.jobs)))
            elif isinstance(effect, Finish):
                raise RuntimeError(f"the scheduler refused a job: {effect}")
            else:
                assert isinstance(effect, EndSequence), effect

    def _service(self, jobs: int) -> float:
        decile = self._random.randrange(10)
        alone, full = GRU_MS[0][decile], GRU_MS[1][decile]
        return (alone + (full - alone) * (jobs - 1) / (BATCH - 1)) / 1e3


def _clock_cost() -> float:
    """Return what `time.thread_time` takes itself."""
    pairs = [-(time.thread_time() - time.thread_time()) for _ in range(10_000)]
    return statistics.median(pairs)


CLOCK = _clock_cost()


def measure_open(workers: int, number: int, rate: float) -> None:
    """Open so many sequences, measure what they take, then steps of sequences all over them."""
    gc.collect()
    before = psutil.Process().memory_info().rss
    simulation = Simulation(workers, number, rate)
    for each in range(number):
        simulation.step(f"sequence-{each:08}")
    opening, worst = simulation.spent / number, simulation.worst
    memory = (psutil.Process().memory_info().rss - before) / number
    simulation.reset()
    for each in range(STEPS):
        simulation.step(f"sequence-{each * 104_729 % number:08}")
    step = simulation.spent / STEPS
    started = time.thread_time()
    gc.collect()
    collection = time.thread_time() - started
    print(
        f"| {workers:,} | {number:,} | {memory:,.0f} B | {opening * 1e6:.1f} µs | {step * 1e6:.1f} µs "
        f"| {worst * 1e3:,.0f} ms | {collection * 1e3:,.0f} ms |",
        flush=True,
    )


def measure_churn(workers: int, sequences: int, rate: float) -> None:
    """Open so many sequences in all; each ends with its second step, once as many others as may be open have come."""
    simulation = Simulation(workers, 2 * CHURNED, rate)
    living: deque[str] = deque()
    for number in range(sequences):
        living.append(f"sequence-{number:08}")
        simulation.step(living[-1])
        if len(living) > CHURNED:
            simulation.step(living.popleft(), ends=True)
    print(
        f"\n{sequences:,} sequences of two steps on {workers:,} workers, "
        f"{simulation.scheduler.open_sequences:,} open at the end: "
        f"{simulation.spent / sequences * 1e6:.1f} µs of processor time each, "
        f"{simulation.now:,.0f} s of simulated time, {psutil.Process().memory_info().rss / 1e6:,.0f} MB"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1_000, help="workers of the model (default 1000)")
    parser.add_argument("--open", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="open sequences")
    parser.add_argument("--sequences", type=int, default=10_000_000, help="in all (default ten million; 0: none)")
    parser.add_argument("--rate", type=float, default=20_000.0, help="steps per simulated second (default 20000)")
    options = parser.parse_args()
    gc.freeze()  # this and the threshold are the server's
    gc.set_threshold(5_000)
    print("| workers | open sequences | memory of one | to open one | a step | longest event | full collection |")
    print("|---|---|---|---|---|---|---|")
    for workers in sorted({1, options.workers}):
        for number in options.open:
            measure_open(workers, number, options.rate)
    if options.sequences:
        measure_churn(options.workers, options.sequences, options.rate)


if __name__ == "__main__":
    main()
