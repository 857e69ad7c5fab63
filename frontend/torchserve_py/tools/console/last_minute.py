"""What went well and wrong with a model in the last minute: the figures of its row in the table of models. Pure.

The minute begins with one of the snapshots that are taken each ten seconds: it has 60 to 69 seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from torchserve_py.base.causes import Cause
from torchserve_py.core.serving.model_activity import Activity, Timing
from torchserve_py.core.serving.serving import WorkerStatus
from torchserve_py.tools.console.history import ends_coarse, short, timing_between

_SNAPSHOTS: Final = 7


class _Snapshot(NamedTuple):
    answers: int  # failures are answers, too
    failures: int
    timeouts: int
    waiting: Timing
    handler: Timing
    deaths: Mapping[str, int]  # by worker


class LastMinute:
    """The last minute of one model version."""

    def __init__(self, activity: Activity) -> None:
        self._snapshots = deque([_snapshot(activity, ())], maxlen=_SNAPSHOTS)

    def sample(self, tick: int, activity: Activity, workers: Iterable[WorkerStatus]) -> dict[str, Any]:
        """Return the figures of the minute that ends with a tick: counts, and times in milliseconds or None."""
        before, now = self._snapshots[0], _snapshot(activity, workers)
        if ends_coarse(tick):
            latest = self._snapshots[-1]
            self._snapshots.append(latest if latest == now else now)
        wait, handler = (
            timing_between(earlier, later)[-1]
            for earlier, later in ((before.waiting, now.waiting), (before.handler, now.handler))
        )
        return {
            "answers": now.answers - before.answers,
            "failures": now.failures - before.failures,
            "timeouts": now.timeouts - before.timeouts,
            "deaths": sum(count - before.deaths.get(worker, 0) for worker, count in now.deaths.items()),
            **dict(zip(("wait_p99", "handler_p99"), short((wait, handler)), strict=True)),
        }


def trouble(minute: Mapping[str, Any], workers: Iterable[WorkerStatus]) -> dict[str, Any] | None:
    """Return what is wrong with a model: None, or why a worker ended last and when it starts again, if it is to."""
    failed = [each for each in workers if each.last_end]
    waiting = [each for each in failed if each.starts_at is not None and not each.waits]
    if not waiting and not minute["deaths"] and not minute["timeouts"]:
        return None
    latest = min(waiting or failed, key=lambda each: each.starts_at or 0.0, default=None)
    return {
        "why": "" if latest is None else latest.last_end,
        "worker": None if latest is None else latest.id,
        "starts_at": None if latest is None else latest.starts_at,
    }


def _snapshot(activity: Activity, workers: Iterable[WorkerStatus]) -> _Snapshot:
    return _Snapshot(
        activity.succeeded + sum(activity.failures.values()),
        activity.failed,
        activity.failures.get(Cause.response_timeout, 0),
        activity.waiting,
        activity.handler,
        {each.id: each.deaths for each in workers if each.deaths},
    )
