"""The one record of a job in flight, for the scheduler, the dispatcher and the workers.

The record is in one table, the scheduler's, from the job's submission until its worker no longer has it. The jobs of a
worker are those that the scheduler counts as in flight there.
"""

import itertools
import logging
import secrets
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.job_observer import OnEnd, OnPart
from torchserve_py.jobs.parts import Part, Parts
from torchserve_py.scheduling.effects import Cause
from torchserve_py.scheduling.job import RUNNING, Job
from ts.protocol.frames import Buffer
from ts.protocol.messages import NO_HISTORIES, Ahead, History, InferRow, encode_infer

logger = logging.getLogger(__name__)

#: What encoding a batch raises: text that is not Unicode, a value that msgpack does not know, a frame over 4 GiB.
_UNSENDABLE: Final = (ValueError, TypeError, OverflowError, struct.error)

#: A random UUID (version 4) without its last 48 bits, which count. An id has to be unique, not secret, and this is many
#: times cheaper than fresh random bits for each request.
_ID_PREFIX: Final = str(uuid.uuid4())[:-12]
_numbers = itertools.count(secrets.randbits(40))


def new_job_id() -> str:
    """Return an id that no other job has had."""
    return f"{_ID_PREFIX}{next(_numbers):012x}"


def refused(cause: Cause) -> Parts:
    """Return the response of a request that became no job, for this cause."""
    parts = Parts(new_job_id(), None, _Unread())
    parts.fail(cause)
    return parts


class _Unread:
    """Takes no notice of a reader."""

    def was_read(self, parts: Parts) -> None:
        """There is no worker to resume."""

    def gave_up(self, parts: Parts) -> None:
        """There is no job to cancel."""


@dataclass(slots=True, eq=False)
class InferenceJob(Job):
    """A job with its request, its reader and the times that the watchdog of its worker compares."""

    request: InferenceRequest = field(kw_only=True)  # what was submitted
    on_end: OnEnd | None = None
    on_part: OnPart | None = None

    #: What the reader holds; None once the job has its outcome.
    parts: Parts | None = field(default=None, init=False, repr=False)
    #: When the job was sent or last answered, by the time in which this process runs; None while it may last as long as
    #: its client likes, because it takes several inputs.
    heard_at: float | None = field(default=None, init=False)
    refusal: Part | None = field(default=None, init=False)  # the answer to a job that no worker can be sent
    #: Since when another server holds the job's sequence (the scheduler's time).
    held_since: float | None = field(default=None, init=False)
    part_at: float = field(default=0.0, init=False)  # when the last part of its stream came (the scheduler's time)
    #: Whether the worker said nothing about the job for too long, and was told to drop it.
    overdue: bool = field(default=False, init=False)

    def drop_body(self) -> None:
        """Let go of the body: the job has its outcome, but its worker may be busy with it for long."""
        self.request = replace(self.request, body=None)

    @property
    def is_part_of_another(self) -> bool:
        return self.request.via == "call"

    @property
    def may_be_handed_over(self) -> bool:
        """Whether another version may run the job: its client has named none, and no worker has some of its inputs."""
        return self.request.by_default and not (self.request.more_input or self.handed_over_by is not None)

    def handed_over(self, parts: Parts, by: object | None) -> "InferenceJob":
        """Return the job as another version's dispatcher submits it, with what its reader holds.

        ``by`` is the version that does not run its sequence, if that is why.
        """
        again = InferenceJob(
            self.id,
            *(self.sequence_id, self.starts_sequence, self.ends_sequence, self.step, self.token),
            unbatched=self.unbatched,
            priority=self.priority,
            client=self.client,
            weight=self.weight,
            expires_at=self.expires_at,
            answer_by=self.answer_by,
            handed_over_by=by,
            request=self.request,
            on_end=self.on_end,
            on_part=self.on_part,
        )
        again.parts = parts
        # A worker that was lost may have run it, but not the one that has just refused it.
        again.sends, again.asks_after = self.sends - (self.state is RUNNING), self.asks_after
        return again

    def history(self, moment_of: Callable[[float], float]) -> History | None:
        """Return what the worker of a stored sequence has to know of the time before, if there is anything.

        ``moment_of`` converts the scheduler's time to that of `ts.protocol.boot_clock`.
        """
        if not (self.opens or self.was_sent_before or self.request.only_ask):
            return None
        asks_after = Cause.not_applied.value if self.request.only_ask else self.asks_after
        return History(moment_of(self.active_since), self.was_sent_before, asks_after)


def encode_batch(
    jobs: Sequence[InferenceJob], moment_of: Callable[[float], float] | None, ahead: Ahead | None = None
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


def _rows(jobs: Sequence[InferenceJob]) -> list[InferRow]:
    """Return what the worker is sent of the jobs."""
    rows: list[InferRow] = []
    for job in jobs:
        sent = job.request
        rows.append(InferRow(job.id, sent.headers, sent.content_type, sent.body, sent.protocol, sent.more_input))
    return rows


def _is_sendable(job: InferenceJob) -> bool:
    try:
        encode_infer(_rows([job]))
    except _UNSENDABLE as error:
        about = {"request_id": job.id, "sequence_id": job.sequence_id}
        logger.warning("Request %s cannot be passed on: %s", job.id, error, extra=about)
        job.refusal = Part(job.id, False, 400, "", [], b"", f"The request cannot be passed on: {error}")
    return job.refusal is None
