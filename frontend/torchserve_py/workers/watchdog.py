"""Whether a worker still answers. One that is silent for too long is killed, and its supervisor starts another.

A worker that runs its jobs independently (`JobClocks`) is not silent while some of them are answered. A job of which
nothing is heard is ended, and the worker is told to drop it; a job that is not dropped either holds its place for
nothing. The worker then gets no more jobs, and is killed once its other jobs are done, so that its replacement has all
places again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.job_clocks import JobClocks
from torchserve_py.workers.parts import Part
from torchserve_py.workers.ranks import Ranks
from ts.protocol.frames import encode
from ts.protocol.messages import PING

logger = logging.getLogger(__name__)

#: How often the limits are checked: this many times in the shortest of them, but at least once a second.
_CHECKS_PER_LIMIT = 5


class Watched(Protocol):
    """A worker, as far as it is watched."""

    label: str
    ended: asyncio.Future[str]
    in_flight: set[str]
    loss_cause: Cause

    def kill(self, reason: str) -> None:
        """End the process at once."""


class Watchdog:
    """Watches one worker.

    Args:
        worker: The worker.
        ranks: Its processes, which are pinged.
        response: For how many seconds it may say nothing about its jobs.
        heartbeat: For how many seconds it may leave pings unanswered.
        independent: Whether it runs its jobs independently of each other.
        end_overdue: Ends jobs of which nothing was heard for too long, and tells the worker to drop them.
        take_out: Has the worker get no more jobs.
    """

    def __init__(
        self,
        worker: Watched,
        ranks: Ranks,
        *,
        response: float,
        heartbeat: float,
        independent: bool,
        end_overdue: Callable[[Sequence[str]], None],
        take_out: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._ranks = ranks
        self._response = response
        self._heartbeat = heartbeat
        self._end_overdue = end_overdue
        self._take_out = take_out
        self._clocks = JobClocks() if independent else None
        self._last_heard = 0.0
        self._paused = False
        #: When the worker was taken out, because jobs hold places for nothing.
        self._taken_out_at: float | None = None

    # Called by the worker.

    def sent(self, job_ids: Iterable[str], now: float) -> None:
        """The worker is sent these jobs, about which it must not be silent for too long."""
        if not self._worker.in_flight:
            self._last_heard = now
        if self._clocks is not None:
            self._clocks.sent(job_ids, now)

    def heard(self, now: float) -> None:
        """A message came."""
        self._last_heard = now

    def results(self, results: Iterable[Part], now: float) -> None:
        """Parts of responses came."""
        if self._clocks is not None:
            self._clocks.heard(results, now)

    def told_to_drop(self, job_ids: Iterable[str], now: float) -> None:
        """The worker is told that nobody waits for these jobs."""
        if self._clocks is not None:
            self._clocks.told_to_drop(job_ids, now)

    def pause(self) -> None:
        """Nothing is received from now on."""
        self._paused = True

    def resume(self, now: float) -> None:
        """Messages are received again."""
        self._paused = False
        self._last_heard = now
        if self._clocks is not None:
            self._clocks.restart(now)

    async def run(self) -> None:
        """Check until the worker has ended."""
        beat = 0
        while not self._worker.ended.done():
            await asyncio.sleep(min(1.0, self._response / _CHECKS_PER_LIMIT, self._heartbeat / _CHECKS_PER_LIMIT))
            now = time.monotonic()
            if not self._paused and self._clocks is not None:
                self._check_jobs(self._clocks, now)
            if not self._paused:
                self._check_silence(now)
            if self._ranks.silence(now) > self._heartbeat:
                self._worker.kill(f"it answered no ping for {self._heartbeat:g} s")
            else:
                beat += 1
                self._ranks.ping(encode([PING, beat]))

    def _check_silence(self, now: float) -> None:
        # Where single jobs are ended first, a worker that lives answers their cancellation.
        limit = self._response * (1 if self._clocks is None else 2)
        if self._worker.in_flight and now - self._last_heard > limit:
            self._worker.loss_cause = Cause.response_timeout
            self._worker.kill(f"it gave no response for {limit:g} s")

    def _check_jobs(self, clocks: JobClocks, now: float) -> None:
        overdue = clocks.take_overdue(self._response, now)
        if overdue:
            logger.warning("Worker %s said nothing about %d jobs for too long", self._worker.label, len(overdue))
            self._end_overdue(overdue)
        stuck = clocks.stuck(self._response, now)
        if stuck and self._taken_out_at is None:
            self._taken_out_at = now
            text = "Worker %s gets no more jobs and will be replaced: it does not drop %d jobs that are over"
            logger.warning(text, self._worker.label, len(stuck))
            self._take_out()
        if self._taken_out_at is not None:
            self._end_taken_out(stuck, now - self._taken_out_at)

    def _end_taken_out(self, stuck: Set[str], seconds: float) -> None:
        """Kill the worker that was taken out once the jobs that are not stuck are done, or have had their time."""
        if self._worker.in_flight <= stuck or seconds > self._response:
            self._worker.kill(f"it did not drop {len(stuck)} jobs that were over")
