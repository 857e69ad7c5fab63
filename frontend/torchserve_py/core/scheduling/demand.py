"""What the jobs of a model version ask of its workers."""

from typing import NamedTuple


class Demand(NamedTuple):
    """What the jobs of a model version ask of its workers at one moment."""

    queued: int  # jobs that wait
    oldest_wait: float  # how long (seconds) the oldest of those has waited that no worker has room for
    busy: float  # how many workers would be full of the jobs in flight
    accepted: int  # how many jobs were accepted so far
    refused: int  # how many were refused so far because no worker could have answered them in time
    per_worker: int  # how many jobs a worker takes at once
    movable: tuple[str, ...]  # the workers that could do without harm, those with the fewest jobs first
    bound: int  # how many workers have the only copy of the state of an open sequence
    givers: tuple[str, ...] = ()  # those of them that can give it to others, those with the fewest sequences first


class WorkerCounts(NamedTuple):
    """The workers of a model version: how many are wanted and ready, whether one fails to load, and the limits."""

    wanted: int
    ready: int
    failing: bool
    least: int
    most: int
