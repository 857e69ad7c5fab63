"""Periodic sessions on a simulated clock: which share of their steps is in time, against how many sessions there are.

    python -m benchmarks.deadlines [--seconds 20]

The scheduler is the server's own; the worker is a device that only takes time. Three ways to serve the same sessions:
first come, first served, where no session says when its steps are due; by deadlines; and with a guarantee, where a
session that does not fit is refused and leaves.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from random import Random
from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.core.fair_use.fair_order import new_order
from torchserve_py.core.scheduling.effects import Effects, Finish, Send
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.timing import Timing

#: Sessions join one after another, this many seconds apart: a server learns how long its batches take from the first.
_JOIN: Final = 0.02
#: How many seconds after it was refused a session tries again.
_RETRY_AFTER: Final = 1.0
#: The share of steps that a server should answer in time.
ENOUGH: Final = 0.999


class Way(StrEnum):
    """How sessions are served."""

    first_come = "first come, first served"
    deadlines = "by deadlines"
    guarantee = "with a guarantee"


@dataclass(frozen=True)
class Kind:
    """Sessions of one kind. Times are in seconds.

    Attributes:
        period: From one step to the next; a step is due when the next one comes.
        seconds: What one step adds to the time of its batch.
        jitter: By which share of the period a step comes later than its turn, at the most.
    """

    name: str
    period: float
    seconds: float
    jitter: float = 0.1


#: Frames of sound, control steps of robots, and chunks of speech for a recogniser.
MIX: Final = (
    Kind("sound", 0.020, 0.0002),
    Kind("control", 0.100, 0.001),
    Kind("speech", 0.500, 0.008),
)


@dataclass
class Device:
    """A worker that only takes time: so much for each batch, and for each of its steps."""

    per_batch: float = 0.001
    noise: float = 0.05  # a batch takes longer than that by an exponentially distributed share of this mean
    random: Random = field(default_factory=lambda: Random(1))

    def seconds(self, steps: list[float]) -> float:
        """Return how long a batch of these steps takes."""
        return (self.per_batch + sum(steps)) * (1 + self.random.expovariate(1 / self.noise))


@dataclass
class Session:
    """A client that sends steps at its period, whatever becomes of them."""

    id: str
    kind: Kind
    begins: float
    in_time: int = 0
    missed: int = 0
    is_refused: bool = False

    @property
    def share(self) -> float:
        """Which share of its steps was in time."""
        return self.in_time / max(1, self.in_time + self.missed)


class Load:
    """Sessions at one worker, on a simulated clock.

    Args:
        batch_size: How many steps a batch has at the most.
        drops: Whether steps that cannot be in time are dropped.
    """

    def __init__(self, way: Way, device: Device, batch_size: int = 16, *, drops: bool = False) -> None:
        self.now = 0.0
        self.sessions: list[Session] = []
        self.batches = Counter[int]()
        self._way, self._device, self._drops = way, device, drops
        self._random = Random(2)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._refused: set[str] = set()
        self._of_job: dict[str, tuple[Session, float]] = {}
        policy = Policy(batch_size, sequences=SequencePolicy(1e9, queue_size=1_000, max_sequences=100_000))
        self.scheduler = Scheduler(policy, order=new_order)
        self._perform(self.scheduler.set_workers(1, 0.0))
        self._perform(self.scheduler.worker_up("w", 0.0))

    def add(self, kind: Kind, begins: float) -> Session:
        """Add a session that begins at a moment, in a phase of its own."""
        session = Session(f"s{len(self.sessions)}", kind, begins + self._random.random() * kind.period)
        self.sessions.append(session)
        self._later(session.begins, lambda: self._step(session, session.begins))
        return session

    def run(self, until: float) -> None:
        """Go on to a moment; steps that come later do not count."""
        while self._events and min(self._events[0][0], self.scheduler.next_deadline() or until) <= until:
            deadline = self.scheduler.next_deadline()
            if deadline is not None and deadline <= self._events[0][0]:
                self.now = max(self.now, deadline)
                self._perform(self.scheduler.tick(self.now))
            else:
                self.now, _, happen = heapq.heappop(self._events)
                happen()

    def _later(self, at: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), happen))

    def _step(self, session: Session, turn: float) -> None:
        """A step comes, and the next one will."""
        kind = session.kind
        job = Job(f"{session.id}-{next(self._numbers)}", session.id)
        if self._way is not Way.first_come:
            period = kind.period if self._way is Way.guarantee else None
            job.timing = Timing(kind.period, drops=self._drops, period=period)
        self._of_job[job.id] = session, self.now + kind.period
        self._perform(self.scheduler.submit(job, self.now))
        session.is_refused = session.id in self._refused
        self._refused.discard(session.id)
        turn += _RETRY_AFTER * (0.5 + self._random.random()) if session.is_refused else kind.period
        self._later(turn + self._random.random() * kind.jitter * kind.period, lambda: self._step(session, turn))

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(_, jobs):
                    ids = [job.id for job in jobs]
                    self.batches[len(ids)] += 1
                    took = self._device.seconds([self._of_job[job_id][0].kind.seconds for job_id in ids])
                    self._later(self.now + took, lambda ids=ids: self._answer(ids))  # type: ignore[misc]
                case Finish(job, cause):
                    session, _ = self._of_job.pop(job.id)
                    session.missed += cause is Cause.deadline_missed
                    if cause is Cause.deadline_capacity:
                        self._refused.add(session.id)

    def _answer(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            session, due = self._of_job.pop(job_id)
            session.in_time += self.now <= due
            session.missed += self.now > due
        self._perform(self.scheduler.parts([(job_id, False) for job_id in job_ids], self.now))


@dataclass(frozen=True)
class Result:
    """What became of a number of sessions: how many were accepted, and which share of their steps was in time."""

    offered: int
    accepted: int
    in_time: float
    worst: float  # of the accepted session with the smallest share


def serve(way: Way, offered: int, seconds: float, mix: tuple[Kind, ...] = MIX) -> Result:
    """Serve as many sessions, of each kind in turn, for so many seconds after the last has joined."""
    load = Load(way, Device())
    for number in range(offered):
        load.add(mix[number % len(mix)], number * _JOIN)
    load.run(offered * _JOIN + seconds)
    accepted = [each for each in load.sessions if not each.is_refused]
    in_time, missed = sum(each.in_time for each in accepted), sum(each.missed for each in accepted)
    return Result(offered, len(accepted), in_time / (in_time + missed), min(each.share for each in accepted))


def knee(way: Way, seconds: float, mix: tuple[Kind, ...] = MIX) -> int:
    """Return how many sessions can be served so that nearly all steps are in time."""
    least, most = 1, 2
    while serve(way, most, seconds, mix).in_time >= ENOUGH:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        if serve(way, middle, seconds, mix).in_time >= ENOUGH:
            least = middle
        else:
            most = middle
    return least


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="deadlines", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated seconds of each load")
    seconds = parser.parse_args().seconds
    knees = {way: knee(way, seconds) for way in (Way.first_come, Way.deadlines)}
    for way, sessions in knees.items():
        print(f"{way}: {ENOUGH:.1%} of the steps of {sessions} sessions are in time", flush=True)
    best = knees[Way.deadlines]
    for factor in (0.5, 0.75, 1.0, 1.25, 1.5, 3.0):
        offered = max(1, round(factor * best))
        for way in Way:
            result = serve(way, offered, seconds)
            print(
                f"{offered:5} offered, {way}: {result.accepted} accepted, {result.in_time:.2%} of their steps in time,"
                f" {result.worst:.2%} of the worst session's",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
