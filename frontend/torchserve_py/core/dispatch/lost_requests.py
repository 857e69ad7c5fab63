"""What the log says of the requests that a worker had when it died, so that the one that kills workers can be found."""

import logging
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from torchserve_py.core.jobs.call import Call
from torchserve_py.core.scheduling.job import CANCELLED, DONE
from torchserve_py.core.scheduling.lost_jobs import MOST_RUNS

logger = logging.getLogger(__name__)

#: How many characters of a digest name a body.
_DIGEST: Final = 16
#: How many bytes of a body no worker runs out of memory for.
_SMALL: Final = 512 * 1024


class LostRequests:
    """The jobs of one worker; made before the scheduler decides what becomes of them."""

    def __init__(self, worker_id: str, jobs: Sequence[Call]) -> None:
        self._worker_id = worker_id
        self._jobs = [job for job in jobs if job.state is not CANCELLED and not job.asks_after]

    @property
    def latest_is_small(self) -> bool:
        """Whether the job that the worker was sent last cannot have killed it while it read the job."""
        return bool(self._jobs) and sum(map(len, _pieces(self._jobs[-1].body))) <= _SMALL

    def log(self) -> None:
        """Name the jobs that have been with `MOST_RUNS` workers that died, and count those that run once more."""
        fatal = [job for job in self._jobs if job.sends >= MOST_RUNS and (job.state is DONE or job.asks_after)]
        again = sum(job.state is not DONE for job in self._jobs if job not in fatal)
        for job in fatal:
            text = "Request %s does not run again: %d workers have died with it, worker %s the last; %s"
            about = {"request_id": job.id, "sequence_id": job.sequence_id or ""}
            logger.error(text, job.id, MOST_RUNS, self._worker_id, _described(job), extra=about)
        if again:
            logger.warning("Worker %s is gone; requests that it had and that run once more: %d", self._worker_id, again)


def _described(job: Call) -> str:
    """Return what names a request in other logs: its sequence and step, and the digest of its body."""
    pieces = _pieces(job.body)
    digest = sha256()
    for piece in pieces:
        digest.update(piece)
    step = "" if job.step is None else f", step {job.step}"
    named = "" if job.sequence_id is None else f"sequence {job.sequence_id!r}{step}, "
    return f"{named}{sum(map(len, pieces))} bytes, SHA-256 {digest.hexdigest()[:_DIGEST]}…"


def _pieces(body: Any) -> list[Any]:
    """Return the bytes of a body: those of a raw one, or of the values of its parameters."""
    values = [value for _, _, value in body] if isinstance(body, (list, tuple)) else [body]
    return [value.encode(errors="replace") if isinstance(value, str) else value for value in values if value]
