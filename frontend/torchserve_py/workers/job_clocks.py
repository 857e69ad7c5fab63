"""For how long a worker has been silent about each of its jobs.

A worker that runs one batch, or one step, at a time is silent about all its jobs or about none. One that runs its jobs
independently (asyncCommunication) may answer some while another hangs: those that are answered must not hide it.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.workers.parts import Part


class JobClocks:
    """When something was last heard of each job (monotonic seconds)."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def sent(self, job_ids: Iterable[str], now: float) -> None:
        """These jobs were sent to the worker."""
        self._heard.update(dict.fromkeys(job_ids, now))

    def heard(self, results: Iterable[Part], now: float) -> None:
        """These parts of responses came."""
        for job_id, more, *_ in results:
            if job_id in self._heard:
                if more:
                    self._heard[job_id] = now
                else:
                    del self._heard[job_id]

    def restart(self, now: float) -> None:
        """Nothing could be heard until now, because nobody listened."""
        self._heard = dict.fromkeys(self._heard, now)

    def take_overdue(self, limit: float, now: float) -> list[str]:
        """Return the jobs of which nothing was heard for more than ``limit`` seconds; each is returned once."""
        overdue = [job_id for job_id, heard in self._heard.items() if now - heard > limit]
        for job_id in overdue:
            del self._heard[job_id]
        return overdue
