"""What happened to the models lately: versions that came and went, workers that started, ended or do not load, scaling.

The sampler shows each version's workers once a second; an event is the difference to the look before. Pure: no clock,
no I/O.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from torchserve_py.core.serving.serving import ModelStatus, ServedModel, WorkerCountChange, WorkerStatus

MOST_EVENTS: Final = 300


class TimelineEvent(NamedTuple):
    """One event; its number is greater than those of the events before. ``kind`` is good, bad or plain."""

    number: int
    at: float  # seconds since 1970
    kind: str
    model: str
    version: str
    text: str


class _Seen(NamedTuple):
    """What was seen of a version at the last look."""

    model: ServedModel
    limits: tuple[int, int]
    is_default: bool
    workers: Mapping[str, WorkerStatus]
    change: WorkerCountChange | None
    migrated: int
    not_migrated: int


class Timeline:
    """The latest events."""

    def __init__(self) -> None:
        self.events: deque[TimelineEvent] = deque(maxlen=MOST_EVENTS)
        self._seen: dict[int, _Seen] = {}
        self._number = 0

    def since(self, number: int) -> list[TimelineEvent]:
        """Return the events behind the one of this number, oldest first."""
        return [each for each in self.events if each.number > number]

    def look(self, model: ServedModel, status: ModelStatus, at: float, *, is_default: bool) -> None:
        """Compare a version with the last look at it."""
        limits, workers = (status.min_workers, status.max_workers), {each.id: each for each in status.workers}
        before = self._seen.get(model.id)
        moves = (status.migrated, status.not_migrated)
        self._seen[model.id] = _Seen(model, limits, is_default, workers, status.latest_change, *moves)
        if before is None:
            self._add(at, "plain", model, "registered" + (" as the default version" if is_default else ""))
        else:
            if limits != before.limits:
                self._add(at, "plain", model, f"scaled from {_range(before.limits)} to {_range(limits)} workers")
            if is_default and not before.is_default:
                self._add(at, "plain", model, "is the default version now")
            if moved := status.migrated - before.migrated:
                self._add(at, "good", model, f"{_sequences(moved)} moved here from another version")
            if failed := status.not_migrated - before.not_migrated:
                self._add(at, "bad", model, f"{_sequences(failed)} of another version could not be migrated")
        change = status.latest_change
        if change is not None and change != (None if before is None else before.change):
            self._add(at, "plain", model, f"from {change.before} to {change.now} workers: {change.why}")
        known = {} if before is None else before.workers
        for name, worker in workers.items():
            self._look_at_worker(model, known.get(name), worker, at)
        for name in known.keys() - workers.keys():
            self._add(at, "plain", model, f"worker {name} was stopped")

    def forget(self, gone: Sequence[int], at: float) -> None:
        """Tell of versions that are not served any more."""
        for key in gone:
            seen = self._seen.pop(key, None)
            if seen is not None:
                self._add(at, "plain", seen.model, "unregistered")

    def _look_at_worker(self, model: ServedModel, before: WorkerStatus | None, now: WorkerStatus, at: float) -> None:
        again = f"; starts again in {now.starts_in} s" if now.starts_in else ""
        if now.restarts != (0 if before is None else before.restarts) and now.last_end:
            self._add(at, "bad", model, f"worker {now.id} ended: {now.last_end}{again}")
        if now.failure and now.failure != (None if before is None else before.failure):
            self._add(at, "bad", model, f"worker {now.id} cannot load the model: {now.failure}{again}")
        if now.gave_up and not (before is not None and before.gave_up):
            self._add(at, "bad", model, f"worker {now.id} was given up; it is started again once a minute")
        if now.ready and (before is None or not before.ready or before.pid != now.pid):
            self._add(at, "good", model, f"worker {now.id} is ready (process {now.pid})")

    def _add(self, at: float, kind: str, model: ServedModel, text: str) -> None:
        self._number += 1
        self.events.append(TimelineEvent(self._number, at, kind, model.name, model.version, text))


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def _range(limits: tuple[int, int]) -> str:
    least, most = limits
    return str(least) if least == most else f"{least} to {most}"
