"""Whether a worker still answers. One that is silent for too long is killed, and its supervisor starts another.

A worker that runs one batch, or one step, at a time is silent about all its jobs or about none. One that runs its jobs
independently (asyncCommunication) may answer some while another hangs, so each job is timed. A job about which nothing
is heard is ended, and the worker is told to drop it. If nothing is heard for the same time again, the job is stuck: it
holds its place in the worker for nothing. The worker then gets no more jobs, and is killed once its other jobs are
done, so that its replacement has all places again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.events import WorkerEvents
from torchserve_py.workers.lifecycle import WorkerLimits
from torchserve_py.workers.ranks import Ranks
from ts.protocol.frames import encode
from ts.protocol.messages import PING

if TYPE_CHECKING:
    from torchserve_py.workers.worker import Worker

logger = logging.getLogger(__name__)

#: How often the limits are checked: this many times in the shortest of them, but at least once a second.
_CHECKS_PER_LIMIT = 5


@dataclass(eq=False)
class Watchdog:
    """Watches one worker, and pings its ``ranks``; ``independent`` tells whether its jobs run independently."""

    worker: Worker
    ranks: Ranks
    limits: WorkerLimits
    events: WorkerEvents
    independent: bool

    def __post_init__(self) -> None:
        #: When the latest message came; set by the worker.
        self.last_heard = 0.0
        #: When the worker was taken out, because stuck jobs hold places for nothing.
        self._taken_out_at: float | None = None

    # Called by the worker.

    def resume(self, now: float) -> None:
        """Messages are received again: what could not be heard while the worker was paused was no silence."""
        self.last_heard = now
        for job in self.worker.in_flight.values():
            if job.heard_at is not None:
                job.heard_at = now

    async def run(self) -> None:
        """Check until the worker has ended."""
        beat = 0
        while not self.worker.ended.done():
            await asyncio.sleep(min(1.0, min(self.limits.response, self.limits.heartbeat) / _CHECKS_PER_LIMIT))
            now = time.monotonic()
            if not self.worker.paused:
                self.check(now)
            if self.ranks.silence(now) > self.limits.heartbeat:
                self.worker.kill(f"it answered no ping for {self.limits.heartbeat:g} s")
            else:
                beat += 1
                self.ranks.ping(encode([PING, beat]))

    def check(self, now: float) -> None:
        """End what is overdue, and the worker if it is silent."""
        if self.independent:
            self._check_jobs(now)
        sent_or_heard = [job.heard_at for job in self.worker.in_flight.values() if job.heard_at is not None]
        # Where single jobs are ended first, a worker that lives answers their cancellation.
        limit = self.limits.response * (2 if self.independent else 1)
        if sent_or_heard and now - max(self.last_heard, min(sent_or_heard)) > limit:
            self.worker.loss_cause = Cause.response_timeout
            self.worker.kill(f"it gave no response for {limit:g} s")

    def _check_jobs(self, now: float) -> None:
        in_flight, limit = self.worker.in_flight, self.limits.response
        silent = [job for job in in_flight.values() if job.heard_at is not None and now - job.heard_at > limit]
        stuck = [job for job in silent if job.overdue]
        overdue = [job for job in silent if not job.overdue]
        if overdue:
            logger.warning("Worker %s said nothing about %d jobs for too long", self.worker.label, len(overdue))
        for job in overdue:
            job.overdue, job.heard_at = True, now
            self.events.cancel(job, Cause.response_timeout)
        if stuck and self._taken_out_at is None:
            self._taken_out_at = now
            text = "Worker %s gets no more jobs and will be replaced: it does not drop %d jobs that are over"
            logger.warning(text, self.worker.label, len(stuck))
            self.events.take_out(self.worker)
        if self._taken_out_at is not None and (len(in_flight) == len(stuck) or now - self._taken_out_at > limit):
            self.worker.kill(f"it did not drop {len(stuck)} jobs that were over")
