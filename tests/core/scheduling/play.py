"""Plays events against a scheduler: checks its invariants after each, and writes effects down so that they can be read.

w1 <- a b           Send(w1, [a, b])
w1 << a b           SendAhead(w1, [a, b], joins=False)
w1 <+ a b           SendAhead(w1, [a, b], joins=True)
w1 begins a b       Begin(w1, [a, b])
a: queue_full       Finish(a, queue_full)
w1 cancel a         Cancel(w1, [a])
w1 end s: idle      CloseSequence(w1, s, idle)        (- for a sequence that never had a worker)
w1 released         Released(w1)
"""

from tests.core.scheduling.invariants import validate

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.fair_use.fair_order import FairOrder
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.scheduling.effects import Begin, Cancel, CloseSequence, Effect, Effects, Finish, Send, SendAhead
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.scheduler import Scheduler

BATCHES = Policy(batch_size=2, max_batch_delay=1.0)
CONTINUOUS = Policy(batch_size=2, continuous=True)


def sequences(
    batch_size: int = 2,
    max_batch_delay: float = 1.0,
    continuous: bool = False,
    max_idle: float = 10.0,
    timeout: float | None = None,
    queue_size: int = 3,
    max_sequences: int = 10,
    restart_expired: bool = False,
    ahead: bool = False,
) -> Policy:
    limits = SequencePolicy(max_idle, timeout, queue_size, max_sequences, restart_expired)
    return Policy(batch_size, max_batch_delay, continuous=continuous, ahead=ahead, sequences=limits)


class Play:
    """A scheduler with `workers` workers w1, w2, … up at second 0."""

    def __init__(self, policy: Policy, workers: int = 1, over: ClosedSequences | None = None) -> None:
        self.scheduler = Scheduler(policy, lambda worker_id: self.unbegun.pop(worker_id, 0), over, FairOrder)
        self.unbegun: dict[str, int] = {}
        self.now = 0.0
        self.scheduler.set_workers(workers, 0.0)
        for number in range(1, workers + 1):
            self.scheduler.worker_up(f"w{number}", 0.0)

    def begins_early(self, worker_id: str) -> None:
        """The worker has begun what it was sent ahead, and its answers to what it ran are on their way."""
        self.unbegun.pop(worker_id)

    def at(self, now: float) -> "Play":
        """Time passes, and nobody ticks."""
        self.now = now
        return self

    def submit(self, job_id: str, sequence_id: str | None = None, **fields: object) -> list[str]:
        return self._written(self.scheduler.submit(Job(job_id, sequence_id, **fields), self.now))

    def part(self, job_id: str) -> list[str]:
        return self._written(self.scheduler.parts([(job_id, True)], self.now))

    def answer(self, *job_ids: str) -> list[str]:
        effects: list[str] = []
        for job_id in job_ids:
            effects += self._written(self.scheduler.parts([(job_id, False)], self.now))
        return effects

    def answer_together(self, *job_ids: str) -> list[str]:
        return self._written(self.scheduler.parts([(job_id, False) for job_id in job_ids], self.now))

    def postpone(self, job_id: str, until: float) -> list[str]:
        return self._written(self.scheduler.postpone(job_id, until, self.now))

    def let_go(self, sequence_id: str) -> list[str]:
        return self._written(self.scheduler.let_go(sequence_id, self.now))

    def cancel(self, job_id: str) -> list[str]:
        return self._written(self.scheduler.cancel(job_id, self.now))

    def tick(self) -> list[str]:
        return self._written(self.scheduler.tick(self.now))

    def worker_up(self, worker_id: str) -> list[str]:
        return self._written(self.scheduler.worker_up(worker_id, self.now))

    def worker_lost(self, worker_id: str, cause: Cause = Cause.worker_died, *, unread: bool = False) -> list[str]:
        return self._written(self.scheduler.worker_lost(worker_id, cause, self.now, unread=unread))

    def retire(self, worker_id: str) -> list[str]:
        return self._written(self.scheduler.retire(worker_id, self.now))

    def rest(self, worker_id: str, *, rests: bool) -> list[str]:
        return self._written(self.scheduler.rest(worker_id, self.now, rests=rests))

    def set_workers(self, count: int) -> list[str]:
        return self._written(self.scheduler.set_workers(count, self.now))

    def close_sequence(self, sequence_id: str, reason: CloseReason = CloseReason.ended) -> list[str]:
        return self._written(self.scheduler.close_sequence(sequence_id, reason, self.now))

    def drain(self) -> list[str]:
        return self._written(self.scheduler.drain(Cause.draining, self.now))

    def close(self, cause: Cause = Cause.unregistered) -> list[str]:
        return self._written(self.scheduler.close(cause, self.now))

    def job(self, job_id: str) -> Job:
        return self.scheduler._shared.jobs[job_id]

    def asks(self, job_id: str) -> str:
        """Why the job is sent only to ask what has become of it, if it is."""
        return self.job(job_id).asks_after

    def next_deadline(self) -> float | None:
        return self.scheduler.next_deadline()

    def _written(self, effects: Effects) -> list[str]:
        for effect in effects:
            if isinstance(effect, SendAhead):
                self.unbegun[effect.worker_id] = self.unbegun.get(effect.worker_id, 0) + 1
            elif isinstance(effect, Begin):
                self.unbegun.pop(effect.worker_id, None)
        validate(self.scheduler, self.now)
        return [written(effect) for effect in effects]


def written(effect: Effect) -> str:
    match effect:
        case Send(worker_id, jobs):
            return f"{worker_id} <- {' '.join(job.id for job in jobs)}"
        case SendAhead(worker_id, jobs, joins):
            return f"{worker_id} {'<+' if joins else '<<'} {' '.join(job.id for job in jobs)}"
        case Begin(worker_id, jobs):
            return f"{worker_id} begins {' '.join(job.id for job in jobs)}"
        case Finish(job, cause):
            return f"{job.id}: {cause}"
        case Cancel(worker_id, job_ids):
            return f"{worker_id} cancel {' '.join(job_ids)}"
        case CloseSequence(worker_id, sequence_id, reason, _):
            return f"{worker_id or '-'} end {sequence_id}: {reason}"
    return f"{effect.worker_id} released"
