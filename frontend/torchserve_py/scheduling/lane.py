"""Lanes, and the workers that take their batches from them.

Under `Fifo` every worker takes from one shared lane of jobs. Under `Sequences` each worker has a lane of its own, which
holds its ready sequences.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torchserve_py.scheduling.job import Job

Item = TypeVar("Item")


class Lane(ABC, Generic[Item]):
    """Items that a worker may take, oldest first, each with the moment at which it became takeable.

    items       an OrderedDict, since items also leave from the middle (a cancelled job) and enter at the front (a
                sequence that joins its own stream), both in O(1)
    delay       how long an item may wait for a fuller batch
    free        the workers of this lane that have room, the longest free first
    busy        the workers that run a batch and may be sent more ahead, the longest busy first
    ahead       the workers that were sent a batch ahead, the earliest batch first
    jobs_ahead  how many jobs were sent ahead
    """

    __slots__ = ("ahead", "busy", "delay", "free", "items", "jobs_ahead", "timer")

    def __init__(self, delay: float) -> None:
        self.items: OrderedDict[Item, float] = OrderedDict()
        self.delay = delay
        self.free: dict[str, WorkerLoad] = {}
        self.busy: dict[str, WorkerLoad] = {}
        self.ahead: dict[str, WorkerLoad] = {}
        self.jobs_ahead = 0
        self.timer = 0

    @property
    @abstractmethod
    def members(self) -> int:
        """How many items the lane could hold at once: when it does, waiting for more is of no use."""

    @abstractmethod
    def may_go_ahead(self, room: int, now: float) -> bool:
        """Whether a batch for this room would be no fuller if it were formed when its worker is idle."""

    @abstractmethod
    def take(self, room: int) -> list[Job]:
        """Remove and return the next jobs for one worker, `room` at most; they are in flight from now on."""

    def due(self, now: float) -> float | None:
        """When the oldest item will have waited long enough for a fuller batch; None if there is none."""
        for takeable_at in self.items.values():
            return takeable_at + self.delay
        return None

    def waits(self, now: float) -> bool:
        """Whether the oldest item has not waited long enough for a fuller batch."""
        due = self.due(now)
        return due is not None and due > now


class AheadBatch(NamedTuple):
    """Jobs that were sent ahead; their number tells which batch was sent ahead earlier."""

    number: int
    jobs: list[Job]


@dataclass(slots=True, eq=False, repr=False)
class WorkerLoad:
    """What the scheduler knows of a worker: the lane that it takes jobs from, and its jobs in flight and ahead."""

    id: str
    lane: Lane[Any]
    in_flight: dict[str, Job] = field(default_factory=dict)
    ahead: list[AheadBatch] = field(default_factory=list)
    retiring: bool = False

    def __repr__(self) -> str:
        return f"WorkerLoad({self.id!r}, in_flight={list(self.in_flight)}{', retiring' if self.retiring else ''})"
