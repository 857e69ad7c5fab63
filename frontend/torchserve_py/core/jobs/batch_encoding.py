"""A batch of calls as the worker gets it."""

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final

from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Part
from ts.protocol.frames import Buffer
from ts.protocol.messages import NO_HISTORIES, Ahead, WireRow, encode_infer

logger = logging.getLogger(__name__)

#: What encoding a batch raises: text that is not Unicode, a value that msgpack does not know, a frame over 4 GiB.
_UNSENDABLE: Final = (ValueError, TypeError, OverflowError, struct.error)


def encode_batch(
    jobs: Sequence[Call], moment_of: Callable[[float], float] | None, ahead: Ahead | None = None
) -> list[Buffer]:
    """Encode a batch without those of its jobs that cannot be encoded: they get a `refusal`.

    ``moment_of`` converts the scheduler's time to that of `ts.protocol.boot_clock`; without it the jobs have no
    histories.
    """
    histories = NO_HISTORIES
    if moment_of is not None:
        histories = {job.id: history for job in jobs if (history := job.history(moment_of)) is not None}
    try:
        return encode_infer(_rows(jobs), histories, ahead)
    except _UNSENDABLE:
        return encode_infer(_rows([job for job in jobs if _is_sendable(job)]), histories, ahead)


def _rows(jobs: Sequence[Call]) -> list[WireRow]:
    """Return what the worker is sent of the jobs."""
    return [(job.id, job.headers, job.content_type, job.body, job.protocol, job.open_ended) for job in jobs]


def _is_sendable(job: Call) -> bool:
    try:
        encode_infer(_rows([job]))
    except _UNSENDABLE as error:
        about = {"request_id": job.id, "sequence_id": job.sequence_id}
        logger.warning("Request %s cannot be passed on: %s", job.id, error, extra=about)
        job.refusal = Part(job.id, False, 400, "", [], b"", f"The request cannot be passed on: {error}")
    return job.refusal is None
