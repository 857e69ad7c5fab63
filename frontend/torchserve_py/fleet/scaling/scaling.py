"""How many workers a model version needs: more as soon as jobs wait too long, fewer once that has lasted.

Pure: `Scaling.decide` is told the demand and the time, about once a second, and may answer with a number of workers.

Up: a job waits longer than the target, or was refused because it could not have been answered in time, and not because
workers are about to become ready. The number doubles, as far as there are jobs for that many workers.
Down: for a whole window no job waited longer than the target, and on average so few workers were busy that fewer would
have done. At most half of them go. An up that soon follows a down makes the next windows longer, so that a steady load
between two numbers does not let workers come and go; so does one after which a worker stays, whose sequences cannot
move.
To zero, if that is allowed: nothing was asked for so long. The first job wakes the model.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from torchserve_py.base.causes import Reason
from torchserve_py.core.scheduling.demand import Demand, WorkerCounts

#: Seconds after which workers that are not ready yet no longer keep further ones from being started.
STARTING_LIMIT: Final = 10.0

_FULL: Final = 0.7  # of the workers that remain, this share may be busy on average
_MOST_PATIENCE: Final = 16


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """When to change the number of workers; all in seconds."""

    target_wait: float = 1.0  # how long a job may wait before workers are added (targetWaitMSec)
    down_after: float = 60.0  # how long fewer workers must have been enough (downAfterSec)
    #: After how long without a job the last worker goes, if there may be none (idleTimeoutSec).
    idle_timeout: float = 300.0


class Decision(NamedTuple):
    """How many workers there are to be from now on, and why: for metrics, and in words."""

    workers: int
    reason: Reason
    why: str


class Scaling:
    """Decides for one model version. Times are monotonic seconds and never go back."""

    def __init__(self, policy: ScalingPolicy, now: float) -> None:
        self._policy = policy
        self._seen_at = now
        self._window_from = now
        self._busy_seconds = 0.0  # in the window, all workers together
        self._last_wait = 0.0
        self._accepted = 0
        self._refused = 0
        self._active_at = now
        self._short_since: float | None = None  # since when fewer workers are ready than wanted
        self._down_at: float | None = None  # when workers were taken down last, if none was added since
        self._down_to = 0  # to how many
        self._patience = 1  # what the length of a window is multiplied by

    def decide(self, demand: Demand, workers: WorkerCounts, now: float) -> Decision | None:
        """Return the new number of workers, None to leave it as it is. The caller starts or stops them at once."""
        is_rising = demand.oldest_wait >= self._last_wait
        late, self._refused = demand.refused - self._refused, demand.refused
        self._note(demand, workers, now)
        if not workers.wanted:
            return self._wake(demand, workers, now)
        if late or demand.oldest_wait > self._policy.target_wait:
            self._restart_window(now)
            return self._up(demand, late, workers, now) if is_rising or late else None
        return self._idle(demand, workers, now) or self._down(demand, workers, now)

    def _note(self, demand: Demand, workers: WorkerCounts, now: float) -> None:
        self._busy_seconds += demand.busy * (now - self._seen_at)
        self._seen_at = now
        self._last_wait = demand.oldest_wait
        if workers.ready >= workers.wanted:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        is_loading = workers.ready < workers.wanted and not workers.failing
        if demand.accepted != self._accepted or demand.queued or demand.busy or is_loading:
            self._active_at = now
        self._accepted = demand.accepted

    def _wake(self, demand: Demand, workers: WorkerCounts, now: float) -> Decision | None:
        if not demand.queued or not workers.most:
            return None
        return self._added(max(1, workers.least), Reason.request, _requests(demand.queued), now)

    def _up(self, demand: Demand, late: int, workers: WorkerCounts, now: float) -> Decision | None:
        if workers.failing or (self._short_since is not None and now - self._short_since < STARTING_LIMIT):
            return None
        usable = math.ceil(demand.busy + (demand.queued + late) / demand.per_worker)
        count = min(2 * workers.wanted, usable, workers.most)
        if count <= workers.wanted:
            return None
        why = f"{_requests(demand.queued)}, the oldest for {demand.oldest_wait:.1f} s"
        if late:
            why += f"; refused because they would have been too late: {late}"
        return self._added(count, Reason.waiting, why, now)

    def _added(self, count: int, reason: Reason, why: str, now: float) -> Decision:
        if self._down_at is not None and now - self._down_at < self._window:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._down_at = None
        self._short_since = now
        self._restart_window(now)
        return Decision(count, reason, why)

    def _idle(self, demand: Demand, workers: WorkerCounts, now: float) -> Decision | None:
        idle_for = now - self._active_at
        if workers.least or demand.bound or idle_for < self._policy.idle_timeout:
            return None
        return self._removed(0, Reason.idle, f"no request for {idle_for:.0f} s", now)

    def _down(self, demand: Demand, workers: WorkerCounts, now: float) -> Decision | None:
        seconds = now - self._window_from
        if seconds < self._window:
            return None
        if self._down_at is not None:  # no worker was missed since the last one went
            stayed = workers.wanted > self._down_to
            self._down_at, self._patience = None, min(2 * self._patience, _MOST_PATIENCE) if stayed else 1
        mean = self._busy_seconds / seconds
        enough = max(math.ceil(mean / _FULL), math.ceil(workers.wanted / 2), workers.least)
        if enough >= workers.wanted:
            self._restart_window(now)
            return None
        count = max(enough, demand.bound - len(demand.givers))
        if count >= workers.wanted:  # one of them goes as soon as its sequences are over
            return None
        why = f"of {workers.wanted} workers {mean:.1f} were busy on average in {seconds:.0f} s"
        return self._removed(count, Reason.spare, why, now)

    def _removed(self, count: int, reason: Reason, why: str, now: float) -> Decision:
        self._down_at, self._down_to = now, count
        self._restart_window(now)
        return Decision(count, reason, why)

    def _restart_window(self, now: float) -> None:
        self._window_from, self._busy_seconds = now, 0.0

    @property
    def _window(self) -> float:
        return self._policy.down_after * self._patience


def _requests(count: int) -> str:
    return f"{count} request{'s wait' if count > 1 else ' waits'}"
