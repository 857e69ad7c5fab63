"""For how long a worker has been silent about each of its jobs.

A worker that runs one batch, or one step, at a time is silent about all its jobs or about none. One that runs its jobs
independently (asyncCommunication) may answer some while another hangs: those that are answered must not hide it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from torchserve_py.workers.parts import Part


class JobClocks:
    """When something was last heard of each job (monotonic seconds).

    A job that is overdue is ended, and the worker is told to drop it; if nothing is heard of it for the same time again
    it is stuck, and holds its place in the worker for nothing.
    """

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._overdue: dict[str, float] = {}

    def sent(self, job_ids: Iterable[str], now: float) -> None:
        """These jobs were sent to the worker."""
        self._heard.update(dict.fromkeys(job_ids, now))

    def told_to_drop(self, job_ids: Iterable[str], now: float) -> None:
        """The worker was told to drop these jobs: also those are timed from now on that could last until then."""
        for job_id in job_ids:
            if job_id not in self._overdue:
                self._heard.setdefault(job_id, now)

    def heard(self, results: Iterable[Part], now: float) -> None:
        """These parts of responses came."""
        for job_id, more, *_ in results:
            for clock in (self._heard, self._overdue):
                if job_id in clock:
                    if more:
                        clock[job_id] = now
                    else:
                        del clock[job_id]

    def restart(self, now: float) -> None:
        """Nothing could be heard until now, because nobody listened."""
        self._heard = dict.fromkeys(self._heard, now)
        self._overdue = dict.fromkeys(self._overdue, now)

    def take_overdue(self, limit: float, now: float) -> list[str]:
        """Return the jobs of which nothing was heard for more than ``limit`` seconds; each is returned once."""
        overdue = [job_id for job_id, heard in self._heard.items() if now - heard > limit]
        for job_id in overdue:
            del self._heard[job_id]
            self._overdue[job_id] = now
        return overdue

    def stuck(self, limit: float, now: float) -> Set[str]:
        """Return the jobs of which nothing was heard for more than ``limit`` seconds since they were overdue."""
        return {job_id for job_id, heard in self._overdue.items() if now - heard > limit}
