"""A load whose number of workers follows it, on a simulated clock: a real scheduler, a real policy, no process."""

from itertools import count

from tests.core.scheduling.simulation import SimulatedWorker, Simulation

from torchserve_py.base.causes import CloseReason
from torchserve_py.core.scheduling.demand import WorkerCounts
from torchserve_py.core.scheduling.effects import CloseSequence, Effects
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.fleet.scaling.scaling import Scaling, ScalingPolicy


class FollowedLoad(Simulation):
    """Begins with the fewest workers, which are up; the policy is asked once a second.

    Args:
        policy: When to change the number of workers.
        scheduling: The scheduler's policy.
        least: The fewest workers.
        most: The most.
        step: Seconds that a batch takes.
        load_time: Seconds that a worker takes to load.
    """

    def __init__(
        self, policy: ScalingPolicy, scheduling: Policy, *, least: int, most: int, step: float, load_time: float
    ) -> None:
        self.policy = policy
        self.least, self.most = least, most
        self.wanted = least
        #: The number of workers from each moment on.
        self.changes = [(0.0, least)]
        #: At each look: the moment, how many workers are up, and how long the oldest job has waited.
        self.seen: list[tuple[float, int, float]] = []
        #: Why sequences ended.
        self.ended: list[CloseReason] = []
        self._step = step
        self._load_time = load_time
        self._scaling = Scaling(policy, 0.0)
        self._starting: set[str] = set()
        self._numbers = count(1000)
        self._offered = 0
        super().__init__(scheduling, [lambda: step] * least)
        self._perform(self._scheduler.set_workers(max(1, least), 0.0))
        self._look()

    @property
    def up(self) -> int:
        """How many workers are up and stay."""
        demand = self._scheduler.demand(self.now)
        return len(demand.movable) + demand.bound

    def offer(self, loads: list[tuple[float, float]]) -> None:
        """Submit jobs at these rates per second, each for so many seconds, from now on."""
        at = self.now
        for rate, seconds in loads:
            for number in range(int(rate * seconds)):
                job_id = str(self._offered)
                self._offered += 1
                self._later(at + number / rate, lambda job_id=job_id: self._submit(job_id, None))
            at += seconds

    def offer_sequence(self, sequence_id: str, at: float, steps: int, pause: float) -> None:
        """Submit the steps of a sequence, with pauses between them."""
        for number in range(steps):
            self._offered += 1
            job_id = f"{sequence_id}-{number}"
            self._later(at + number * pause, lambda job_id=job_id: self._submit(job_id, sequence_id))

    def until_answered(self) -> None:
        """Run until every job is answered; fails if one waits for ever."""
        limit = self.now + 100_000.0
        while len(self.latencies) < self._offered:
            assert self.now < limit, "a job waits for ever"
            self._next()

    def run_to(self, moment: float) -> None:
        """Run until that moment."""
        while self.now < moment:
            self._next()

    def rest(self, seconds: float) -> None:
        """Run for so long."""
        self.run_to(self.now + seconds)

    def _perform(self, effects: Effects) -> None:
        super()._perform(effects)
        self.ended += [effect.reason for effect in effects if isinstance(effect, CloseSequence)]

    def _submit(self, job_id: str, sequence_id: str | None) -> None:
        super()._submit(job_id, sequence_id)
        if not self.wanted:
            self._decide()

    def _look(self) -> None:
        self._decide()
        self._later(self.now + 1.0, self._look)

    def _decide(self) -> None:
        demand = self._scheduler.demand(self.now)
        ready = len(demand.movable) + demand.bound
        self.seen.append((self.now, ready, demand.oldest_wait))
        counts = WorkerCounts(self.wanted, ready, False, self.least, self.most)
        decision = self._scaling.decide(demand, counts, self.now)
        if decision is None:
            return
        for _ in range(decision.workers - self.wanted):
            worker_id = f"w{next(self._numbers)}"
            self._starting.add(worker_id)
            self._later(self.now + self._load_time, lambda worker_id=worker_id: self._worker_up(worker_id))
        leaving = [*sorted(self._starting), *demand.movable][: max(0, self.wanted - decision.workers)]
        self.wanted = decision.workers
        self.changes.append((self.now, self.wanted))
        for worker_id in leaving:
            if worker_id in self._starting:
                self._starting.remove(worker_id)
            else:
                self._perform(self._scheduler.retire(worker_id, self.now))
        self._perform(self._scheduler.set_workers(max(1, self.wanted), self.now))

    def _worker_up(self, worker_id: str) -> None:
        if worker_id in self._starting:
            self._starting.remove(worker_id)
            self._workers[worker_id] = SimulatedWorker(lambda: self._step)
            self._perform(self._scheduler.worker_up(worker_id, self.now))
