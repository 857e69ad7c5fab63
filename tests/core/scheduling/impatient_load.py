"""Clients that give up, on a simulated clock: what the workers do is in time, or in vain."""

from collections.abc import Callable
from random import Random

from tests.core.scheduling.simulation import Simulation

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.effects import Cancel, Effects, Finish
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy


class ImpatientLoad(Simulation):
    """Jobs come at random, at a rate, and their clients leave after ``patience`` seconds.

    Args:
        steps: For each worker, what tells how long its next batch takes.
        says_so: Whether the server knows how long its clients wait.
        hand_over: Seconds that a frame needs from the server to a worker, or back.
    """

    def __init__(
        self,
        policy: Policy,
        steps: list[Callable[[], float]],
        *,
        patience: float = 1.0,
        says_so: bool = False,
        hand_over: float = 0.0,
    ) -> None:
        self.patience = patience
        #: Each job that was answered, with how long that took; each that was not, with the cause.
        self.in_time: dict[str, float] = {}
        self.refused: dict[str, tuple[Cause, float]] = {}
        self._says_so = says_so
        super().__init__(policy, steps, hand_over)

    def offer(self, rate: float, seconds: float, priority_of: Callable[[int], int] = lambda number: 0) -> int:
        """Let jobs come, and go on until each has its outcome; return how many came."""
        random = Random(1)
        at, number = self.now, 0
        while (at := at + random.expovariate(rate)) < self.now + seconds:
            job = Job(f"j{self.now:.0f}-{number}", priority=priority_of(number))
            self._later(at, lambda job=job: self._ask(job))
            number += 1
        while self._events:
            self._next()
        return number

    @property
    def runs(self) -> int:
        """How many jobs were begun by a worker."""
        return sum(len(jobs) for _, jobs in self.batches)

    @property
    def in_vain(self) -> float:
        """Which share of the jobs that were begun had no answer in time."""
        return 1 - len(self.in_time) / self.runs

    def _ask(self, job: Job) -> None:
        if self._says_so:
            job.expires_at = job.answer_by = self.now + self.patience
        self._later(self.now + self.patience, lambda: self._perform(self._scheduler.cancel(job.id, self.now)))
        self._perform(self._scheduler.submit(job, self.now))

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Finish):
                self.refused[effect.job.id] = (effect.cause, self.now - effect.job.submitted_at)
        super()._perform([effect for effect in effects if not isinstance(effect, (Finish, Cancel))])

    def _answered(self, job: Job) -> None:
        if job.id not in self.refused:
            self.in_time[job.id] = self.now - job.submitted_at
