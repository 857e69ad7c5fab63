"""A batch on its way to a worker, when some of its requests cannot be encoded."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final

from torchserve_py.scheduling.job import Job
from torchserve_py.workers.parts import Part
from torchserve_py.workers.worker import Worker

logger = logging.getLogger(__name__)

#: What encoding a batch raises: text that is no Unicode, a value that msgpack does not know, a frame over 4 GiB.
UNSENDABLE: Final = (ValueError, TypeError, OverflowError, struct.error)


def send(worker: Worker, jobs: Sequence[Job], now: float, moment_of: Callable[[float], float]) -> list[Part]:
    """Send a batch; return the answers for those of its jobs that cannot be encoded, which count as in flight.

    See `Worker.send`.
    """
    try:
        worker.send(jobs, now, moment_of)
    except UNSENDABLE:
        return _send_singly(worker, jobs, now, moment_of)
    return []


def _send_singly(worker: Worker, jobs: Sequence[Job], now: float, moment_of: Callable[[float], float]) -> list[Part]:
    refused = []
    for job in jobs:
        try:
            worker.send([job], now, moment_of)
        except UNSENDABLE as error:
            about = {"request_id": job.id, "sequence_id": job.sequence_id}
            text = "Request %s cannot be passed on to worker %s: %s"
            logger.warning(text, job.id, worker.id, error, extra=about)
            worker.in_flight.add(job.id)
            refused.append(Part(job.id, False, 400, "", [], b"", f"The request cannot be passed on: {error}"))
    return refused
