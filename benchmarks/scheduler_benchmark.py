"""What scheduling costs: microseconds per job and per sequence step, and how little it depends on open sequences.

    python benchmarks/scheduler_benchmark.py [--rounds 15]

A step is one request of an open sequence: `submit`, its place in a `Send`, and the last `part`. Rounds of the settings
alternate and processor time counts, so that a busy machine slows all alike; each figure is the median of its rounds.
"""

import argparse
import gc
import statistics
import sys
import time
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "frontend"))

from torchserve_py.core.scheduling.effects import Send
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.scheduler import Scheduler

JOBS_PER_ROUND = 8_192
OPEN_SEQUENCES = (100, 10_000, 100_000)


class Setting:
    """One scheduler with one worker, and rounds of requests that fill one batch after another."""

    def __init__(self, name: str, policy: Policy, open_sequences: int = 0) -> None:
        self.name = name
        self.batch_size = policy.batch_size
        self.scheduler = Scheduler(policy)
        self.scheduler.set_workers(1, 0.0)
        self.scheduler.worker_up("worker", 0.0)
        self.sequence_ids = [f"sequence-{number}" for number in range(open_sequences)]
        self.stride = max(1, open_sequences // JOBS_PER_ROUND) | 1  # a round's steps are spread over all of them
        self.job_numbers = count()
        self.now = 0.0
        self.figures: list[float] = []
        for sequence_id in self.sequence_ids:
            self.scheduler.submit(Job(sequence_id, sequence_id), self.now)
            self.now += policy.max_batch_delay
            self.scheduler.tick(self.now)
            self.scheduler.parts([(sequence_id, False)], self.now)

    def round(self) -> None:
        """Play one round and note its microseconds per job."""
        batches = [[self.job() for _ in range(self.batch_size)] for _ in range(JOBS_PER_ROUND // self.batch_size)]
        started_at = time.process_time()
        for batch in batches:
            self.play(batch)
        self.figures.append((time.process_time() - started_at) / JOBS_PER_ROUND * 1e6)

    def job(self) -> Job:
        number = next(self.job_numbers)
        if not self.sequence_ids:
            return Job(f"job-{number}")
        return Job(f"job-{number}", self.sequence_ids[number * self.stride % len(self.sequence_ids)])

    def play(self, batch: list[Job]) -> None:
        """Submit a batch, see it sent whole, and take back every answer."""
        scheduler, now = self.scheduler, self.now
        for job in batch:
            effects = scheduler.submit(job, now)
        send = effects[0]
        assert isinstance(send, Send), send
        assert len(send.jobs) == len(batch), send
        scheduler.parts([(job.id, False) for job in send.jobs], now)
        self.now = now + 1e-4


def settings() -> list[Setting]:
    """The stateless ones, then a stateful one per number of open sequences."""
    stateful = SequencePolicy(max_idle=1e9, max_sequences=OPEN_SEQUENCES[-1])
    return [
        Setting("job, batch 1", Policy(batch_size=1)),
        Setting("job, batch 8", Policy(batch_size=8, max_batch_delay=1.0)),
        Setting("job, continuous", Policy(batch_size=1, continuous=True)),
        *(
            Setting(f"step, batch 32, {number:,} open", Policy(32, max_batch_delay=1.0, sequences=stateful), number)
            for number in OPEN_SEQUENCES
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds per setting (default 15)")
    rounds = parser.parse_args().rounds
    played = settings()
    gc.collect()
    gc.freeze()  # as the server does after its start
    for _ in range(rounds):
        for setting in played:
            setting.round()
    print(f"{'':32}{'median':>10}{'fastest':>10}{'slowest':>10}  (microseconds)")
    for setting in played:
        figures = setting.figures
        print(f"{setting.name:32}{statistics.median(figures):10.2f}{min(figures):10.2f}{max(figures):10.2f}")
    few, *_, many = (statistics.median(setting.figures) for setting in played[-len(OPEN_SEQUENCES) :])
    print(
        f"a step with {OPEN_SEQUENCES[-1]:,} open sequences costs {many / few:.2f} times one with {OPEN_SEQUENCES[0]:,}"
    )


if __name__ == "__main__":
    main()
