"""Workers and clients on a simulated clock, around a real scheduler: what was run when, and how long each job took."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from torchserve_py.core.fair_use.fair_order import FairOrder
from torchserve_py.core.scheduling.effects import Begin, Effects, Finish, Send, SendAhead
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.scheduler import Scheduler


@dataclass
class Frame:
    """Jobs on their way to a worker, or waiting there."""

    jobs: list[Job]
    joins: bool = False
    begun: bool = False
    taken_back: bool = False


@dataclass
class SimulatedWorker:
    """A worker that runs one batch at a time, each for as long as `steps` says.

    `ahead` are the frames that, as far as the server knows, it has not begun.
    """

    steps: Callable[[], float]
    ahead: list[Frame] = field(default_factory=list)
    arrived: list[Frame] = field(default_factory=list)
    busy: bool = False


class Simulation:
    """Runs arrivals to their end.

    Args:
        policy: The scheduler's.
        steps: For each worker, what tells how long its next batch takes.
        hand_over: Seconds that a frame needs from the server to a worker, or back.
    """

    def __init__(self, policy: Policy, steps: list[Callable[[], float]], hand_over: float = 0.0) -> None:
        self.now = 0.0
        self.batches: list[tuple[str, list[str]]] = []
        self.latencies: dict[str, float] = {}
        self._hand_over = hand_over
        self._batch_size = policy.batch_size
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._scheduler = Scheduler(policy, self._take_back, order=FairOrder)
        self._workers = {f"w{number}": SimulatedWorker(each) for number, each in enumerate(steps)}
        self._perform(self._scheduler.set_workers(len(steps), 0.0))
        for worker_id in self._workers:
            self._perform(self._scheduler.worker_up(worker_id, 0.0))

    def run(self, arrivals: list[tuple[float, str, str | None]]) -> None:
        """Submit jobs (moment, id, sequence id), and go on until each is answered."""
        for at, job_id, sequence_id in arrivals:
            self._later(at, lambda job_id=job_id, sequence_id=sequence_id: self._submit(job_id, sequence_id))
        while len(self.latencies) < len(arrivals):
            self._next()

    def _next(self) -> None:
        """Let happen what comes next."""
        deadline = self._scheduler.next_deadline()
        if deadline is not None and (not self._events or deadline <= self._events[0][0]):
            self.now = max(self.now, deadline)
            self._perform(self._scheduler.tick(self.now))
        else:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _later(self, at: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), happen))

    def _submit(self, job_id: str, sequence_id: str | None) -> None:
        self._perform(self._scheduler.submit(Job(job_id, sequence_id), self.now))

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(worker_id, jobs):
                    self._send(worker_id, Frame(list(jobs)))
                case SendAhead(worker_id, jobs, joins):
                    frame = Frame(list(jobs), joins)
                    self._workers[worker_id].ahead.append(frame)
                    self._send(worker_id, frame)
                case Begin(worker_id, _):
                    self._workers[worker_id].ahead.clear()
                case Finish(job, cause):
                    raise AssertionError(f"{job} ended for {cause}")

    def _answered(self, job: Job) -> None:
        self.latencies[job.id] = self.now - job.submitted_at

    def _send(self, worker_id: str, frame: Frame) -> None:
        def arrive() -> None:
            worker = self._workers[worker_id]
            worker.arrived.append(frame)
            self._begin(worker_id)

        self._later(self.now + self._hand_over, arrive)

    def _take_back(self, worker_id: str) -> int:
        worker = self._workers[worker_id]
        not_begun = [frame for frame in worker.ahead if not frame.begun]
        for frame in not_begun:
            frame.taken_back = True
        worker.ahead.clear()
        return len(not_begun)

    def _begin(self, worker_id: str) -> None:
        """Begin the batch that has arrived first, and what joins it; leave out what was taken back."""
        worker = self._workers[worker_id]
        jobs: list[Job] = []
        while not worker.busy and worker.arrived and (not jobs or worker.arrived[0].joins):
            frame = worker.arrived.pop(0)
            if not frame.taken_back:
                frame.begun = True
                jobs += frame.jobs
        if jobs:
            assert len(jobs) <= self._batch_size
            worker.busy = True
            self.batches.append((worker_id, [job.id for job in jobs]))
            self._later(self.now + worker.steps(), lambda: self._finish(worker_id, jobs))

    def _finish(self, worker_id: str, jobs: list[Job]) -> None:
        def answer() -> None:
            for job in jobs:
                self._answered(job)
            self._perform(self._scheduler.parts([(job.id, False) for job in jobs], self.now))

        self._workers[worker_id].busy = False
        self._later(self.now + self._hand_over, answer)
        if not self._hand_over:  # the server decides before the worker goes on
            self._later(self.now, lambda: self._begin(worker_id))
        else:
            self._begin(worker_id)
