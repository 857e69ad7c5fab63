"""The jobs that have ended, as the console knows them: the slowest of each model, and the steps of each sequence."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR, EndedJob
from ts.protocol.request_names import REQUEST_NAME, usable_name

#: The models whose slowest jobs are kept, how many of each, and for how long (seconds), twice that at most.
MOST_MODELS: Final = 500
MOST_SLOW: Final = 10
WINDOW: Final = 300.0
#: The sequences that are remembered of all models, those with the latest steps, and steps of each.
MOST_SEQUENCES: Final = 500
MOST_STEPS: Final = 50

#: What is kept of a job: a few of its fields, and the id by which people find it. All of it would take much memory.
_Kept = tuple[tuple[Any, ...], str]
_fields_of: Final = attrgetter(
    *("at", "submitted_at", "sent_at", "ended_at", "told", "succeeded"),
    *("trace_id", "sequence_id", "state_size", "worker_id"),
)
#: How long a job took, a number that orders equal ones, and what is kept of the job.
_Slow = tuple[float, int, _Kept]


class _Windows(NamedTuple):
    """The slowest jobs that ended in the present window, and in the one before; heaps, the fastest first."""

    began: float
    now: list[_Slow]
    before: list[_Slow]


class FinishedJobs:
    """Follows the jobs of all models: `follow` is a `metrics.model_metrics.FollowJobs`."""

    def __init__(self) -> None:
        self._slow: OrderedDict[tuple[str, str], _Windows] = OrderedDict()
        self._steps: OrderedDict[tuple[str, str, str], deque[_Kept]] = OrderedDict()
        self._count = 0

    def follow(self, name: str, version: str, jobs: Sequence[EndedJob]) -> None:
        """Remember jobs that have ended, in the order in which they did."""
        slow = self._window(name, version, jobs[-1].at).now
        for job in jobs:
            took = job.ended_at - job.submitted_at
            if len(slow) < MOST_SLOW or took > slow[0][0]:
                self._count += 1
                add = heapq.heappush if len(slow) < MOST_SLOW else heapq.heappushpop
                add(slow, (took, self._count, _kept(job)))
            if job.sequence_id:
                self._add_step((name, version, job.sequence_id), job)

    def slowest(self, name: str, version: str) -> list[dict[str, Any]]:
        """Return the slowest jobs of a model in the last minutes, the slowest first."""
        windows = self._slow.get((name, version))
        every = [] if windows is None else sorted([*windows.now, *windows.before], key=itemgetter(0, 1), reverse=True)
        return [_shown(job) for _, _, job in every[:MOST_SLOW]]

    def steps(self, name: str, version: str, sequence_id: str) -> list[dict[str, Any]]:
        """Return the last steps of a sequence, the oldest first; none if it is not remembered."""
        return [_shown(each) for each in self._steps.get((name, version, sequence_id), ())]

    def _window(self, name: str, version: str, at: float) -> _Windows:
        windows = self._slow.get((name, version))
        if windows is None or at - windows.began >= WINDOW:
            recent = [] if windows is None or at - windows.began >= 2 * WINDOW else windows.now
            windows = self._slow[name, version] = _Windows(at, [], recent)
            if len(self._slow) > MOST_MODELS:
                self._slow.popitem(last=False)
        return windows

    def _add_step(self, key: tuple[str, str, str], job: EndedJob) -> None:
        steps = self._steps.get(key)
        if steps is None:
            steps = self._steps[key] = deque(maxlen=MOST_STEPS)
            if len(self._steps) > MOST_SEQUENCES:
                self._steps.popitem(last=False)
        else:
            self._steps.move_to_end(key)
        steps.append(_kept(job))


def _told(told: Cause | int) -> str:
    """Return what the client can read as well: the cause of a failure, whose status depends on the client's API."""
    if isinstance(told, Cause):
        return told.value
    return str(told) if told < 500 else HANDLER_ERROR


def _kept(job: EndedJob) -> _Kept:
    return _fields_of(job), usable_name(job.header(REQUEST_NAME)) or job.id


def _shown(kept: _Kept) -> dict[str, Any]:
    (at, submitted_at, sent_at, ended_at, told, succeeded, trace, sequence, state_size, worker), request = kept
    sent_at = sent_at or ended_at
    return {
        "at": at,
        "waited": (sent_at - submitted_at) * 1000,
        "ran": (ended_at - sent_at) * 1000,
        "told": _told(told),
        "failed": not succeeded,
        "request": request,
        "trace": trace or "",
        "sequence": sequence or "",
        "state": state_size or None,
        "worker": worker,
    }
