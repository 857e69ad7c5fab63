"""What the jobs of a model version ask of its workers: the measure by which their number follows the load."""

from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from torchserve_py.scheduling.lane import WorkerLoad
from torchserve_py.scheduling.modes import Admission, Source


class Demand(NamedTuple):
    """What the jobs of a model version ask of its workers at one moment.

    queued       jobs that wait
    oldest_wait  how long (seconds) the oldest of those has waited that no worker has room for
    busy         how many workers would be full of the jobs in flight
    accepted     how many jobs were accepted so far
    per_worker   how many jobs a worker takes at once
    movable      the workers that could do without harm, those with the fewest jobs first
    bound        how many workers have the only copy of the state of an open sequence
    """

    queued: int
    oldest_wait: float
    busy: float
    accepted: int
    per_worker: int
    movable: tuple[str, ...]
    bound: int


def demand_on(
    workers: Collection[WorkerLoad],
    source: Source,
    admission: Admission,
    now: float,
    *,
    queued: int,
    accepted: int,
    per_worker: int,
) -> Demand:
    """Return what the jobs of a source ask of the workers; those that retire do not count."""
    staying = sorted((worker for worker in workers if not worker.retiring), key=lambda worker: len(worker.in_flight))
    since = [moment for lane in source.lanes if not lane.free for moment in islice(lane.items.values(), 1)]
    since += [worker.ahead[0].jobs[0].submitted_at for worker in staying if worker.ahead]
    bound = {worker.id for worker in staying if source.is_bound(worker)}

    def share_taken(worker: WorkerLoad) -> float:
        return min(1.0, len(worker.in_flight) / per_worker) if admission.room(worker) > 0 else 1.0

    return Demand(
        queued=queued,
        oldest_wait=now - min(since, default=now),
        busy=sum(map(share_taken, staying)),
        accepted=accepted,
        per_worker=per_worker,
        movable=tuple(worker.id for worker in staying if worker.id not in bound),
        bound=len(bound),
    )
