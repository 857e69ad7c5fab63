"""Steps of sequences in a store, each applied exactly once, even if a worker or server is killed at any moment.

`StoredSteps.begin` reads the states that are not in memory and answers repeated steps with their kept answers;
`StoredSteps.complete` writes all changes of a batch in one commit.

Hence every answer that has left was committed, and a step whose answer was lost is not applied again. A step is applied
if the handler returned an answer, with any status. A step that ended with an error (the handler raised, the client
left) is not applied: its sequence is rolled back to the stored state. Other steps of the sequence that run at that
moment use a state that was rolled back, so they end with an error too and are not applied.

A streamed answer is committed with its last part; before that, the step has no stored effect. If another step of the
same sequence ends while the stream runs, the commit of that step includes the changes that the stream has made so far,
and the stream counts as applied. If the stream breaks off after such a commit, a repeated request gets the parts that
were stored, with the header ``ts_stream_interrupted``.

The client never gets a guess. If a commit fails, the worker asks the store whether it was written. If the server does
not know whether a lost worker has applied a step, it sends the step again only to ask (see `History`): taking the
sequence's lease for that also prevents the lost worker from applying the step later. If the outcome remains
unknown, the step is answered with ``outcome_unknown``.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from ts.context import Context
from ts.protocol.messages import ENDED, EndedSequence, InferRow, ResultRow
from ts.sequence.batch_commit import BatchCommit
from ts.sequence.commit_thread import CommitOverlap, CommitThread, StoreAfterCommit
from ts.sequence.holdings import Holdings, quietly
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.step import (
    EXPIRED,
    MOVED,
    NOT_APPLIED,
    ROLLED_BACK,
    RUNNING,
    UNREADABLE,
    Step,
    StepRefusal,
    digest_of,
    error_answer,
    is_repeated,
    look_up,
    unknown,
)
from ts.sequence.steps import Steps
from ts.sequence.stores.store import Commit, Lease, Store, StoreError, StoreSettings

logger = logging.getLogger(__name__)

_NOTHING: Final = object()


class StoredSteps(Steps):
    """The steps of one worker's sequences, whose states a store keeps.

    Args:
        context: The model's context, with the names of the sequence headers.
        cache: The handler's states in memory.
        restart_expired: Whether a step of a sequence that has expired begins a new one instead of being refused.
        max_answer: The limit in bytes beyond which the body of a streamed answer is not kept.
    """

    def __init__(
        self,
        context: Context,
        cache: SequenceCache,
        store: Store,
        settings: StoreSettings,
        *,
        restart_expired: bool,
        max_answer: int,
    ) -> None:
        super().__init__(context, cache)
        self._store = store
        self._lease_seconds = settings.lease
        self._end_header = context.header_key_sequence_end
        self._declares_end = self._end_header.lower()
        self._restart_expired = restart_expired
        self._max_answer = max_answer
        self._thread = CommitThread()
        self._overlap = CommitOverlap()
        #: The commit that the thread makes.
        self._under_way: BatchCommit | None = None
        self._free_store = cast("Store", StoreAfterCommit(store, self.finish_commit))
        self._holdings = Holdings(cache, self._free_store, settings, self._end_live)

    # Before the handler

    def _refusals(self, steps: list[Step]) -> Mapping[str, StepRefusal]:
        if self._under_way is not None:
            uncertain = self._under_way.steps
            # That a step was not applied is true while the lease lasts: its answer must not wait for another commit.
            if any(step.sequence_id in uncertain or step.history.asks_after for step in steps):
                self.finish_commit()
        return self._holdings.take(steps)

    def _answer_at_once(
        self, step: Step, refusals: Mapping[str, StepRefusal], wire_rows: Sequence[InferRow]
    ) -> ResultRow | None:
        sequence_id, request_id, job_id = step.sequence_id, step.request_id, step.row.job_id
        refused = refusals.get(sequence_id)
        if refused is not None and refused[0] is not UNREADABLE:
            # The refusal says that the step was not applied, but an earlier delivery may have been: look it up.
            if step.history.was_sent:
                return look_up(self._free_store, step)
            return error_answer(job_id, *refused[0], refused[1])
        lease = self._holdings.leases[sequence_id]
        if any(other.request_id == request_id for other in self._live_of.get(sequence_id, ())):
            return error_answer(job_id, *RUNNING, f"Request {request_id!r} is still running. Try again later.")
        if step.starts or lease.closed or lease.awaits_first:  # the step may be the first of an incarnation
            step.digest = next(digest_of(wire_row[3]) for wire_row in wire_rows if wire_row[0] == job_id)
        try:
            if is_repeated(step, lease, self._free_store, restart_expired=self._restart_expired):
                return look_up(self._free_store, step, lease.incarnation)
        except StoreError as error:
            logger.error("The sequence store cannot tell whether a step was applied: %s", error)
            return unknown(step)
        if step.history.asks_after:
            if sequence_id not in self._live_of:
                # The step was not applied, so it has not ended the sequence, even if the server assumes that it has.
                self._holdings.roll_back(sequence_id)
            return error_answer(job_id, 500, step.history.asks_after, NOT_APPLIED)
        if refused is not None and lease.closed and not step.starts:  # it needs the state that cannot be read
            return error_answer(job_id, *refused[0], refused[1])
        if lease.closed not in {"", ENDED} and not (step.starts or self._restart_expired):
            text = f"Sequence {sequence_id!r} has expired. Please start a new sequence."
            return error_answer(job_id, *EXPIRED, text)
        self._prepare(step, lease)
        return None

    def _prepare(self, step: Step, lease: Lease) -> None:
        """Prepare the state of a step that is to run: a step that begins an incarnation finds none."""
        if lease.closed or step.starts:
            self._end_live(step.sequence_id)
            self._cache.drop(step.sequence_id)
            if not lease.awaits_first:
                lease.begin_anew()
            lease.closed = ""
        if lease.awaits_first:
            step.is_first, lease.awaits_first = True, False
        else:
            step.digest = b""
        self._holdings.begun(step.sequence_id)

    def _release_closed(self, steps: list[Step]) -> None:
        self._holdings.release_closed(step.sequence_id for step in steps)

    # After the handler

    def complete(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Commit the steps that these answers complete; return the answers to send, errors if a commit failed."""
        self.finish_commit()
        return self._commit(self._batch_commit(answers))

    def complete_and_send(
        self, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], seconds: float, *, meanwhile: bool
    ) -> None:
        """Commit the steps that these answers complete, then send the answers; perhaps in a thread, see `Steps`."""
        self.finish_commit()
        if seconds:  # not for a part of a stream
            now = time.perf_counter()
            self._overlap.ran(now - seconds, now, is_followed=meanwhile)
        batch = self._batch_commit(answers)
        if not (meanwhile and self._overlap.pays and batch.commits) or self._live or self._holdings.has_chores:
            send(self._commit(batch))
            return
        batch.answers = self._with_rolled_back(batch.answers)
        self._under_way = batch
        store = self._store

        def commit() -> None:
            batch.write(store)
            send(batch.answers)
            quietly(store.tidy)

        self._thread.start(commit)

    def finish_commit(self) -> None:
        """Wait until the commit that a thread makes is done and its answers are sent, and draw the conclusions."""
        if self._under_way is None:
            return
        self._thread.wait()
        batch = self._under_way
        batch.conclude(self._holdings)
        self._under_way = None
        self._overlap.committed(batch.seconds)

    def _batch_commit(self, answers: list[ResultRow]) -> BatchCommit:
        """Return the commit of the steps that these answers complete; roll back the sequences of failed steps."""
        live = self._live
        batch = BatchCommit(answers, self._lease_seconds)
        failed: list[Step] = []
        for index, answer in enumerate(answers):
            step = live.get(answer[0])
            if step is None:
                continue
            if answer[6] is None:
                step.add(answer, self._max_answer, self._declares_end)
                if answer[1]:
                    continue
                step.index = index
                batch.steps.setdefault(step.sequence_id, []).append(step)
            else:
                failed.append(step)
            self._leave(step)
        for step in failed:
            self._roll_back(step.sequence_id)
            batch.refuse(step.sequence_id, *MOVED, ROLLED_BACK)
            batch.steps.pop(step.sequence_id, None)
        for sequence_id, steps in list(batch.steps.items()):
            try:
                batch.commits.append(self._sequence_commit(sequence_id, steps))
            except Exception as error:  # an encoder is the handler's code
                logger.exception("The state of %r cannot be stored", sequence_id, extra={"sequence_id": sequence_id})
                batch.refuse(sequence_id, *UNREADABLE, f"The state cannot be stored: {error}")
                self._holdings.drop_from_memory(sequence_id)
                del batch.steps[sequence_id]
        return batch

    def _commit(self, batch: BatchCommit) -> list[ResultRow]:
        """Commit a batch; return the answers to send."""
        batch.write(self._store)
        if batch.commits:  # not for a part of a stream
            self._overlap.committed(batch.seconds)
        batch.conclude(self._holdings)
        return self._with_rolled_back(batch.answers)

    def _sequence_commit(self, sequence_id: str, steps: list[Step]) -> Commit:
        lease = self._holdings.leases[sequence_id]
        state = self._cache.peek(sequence_id, _NOTHING)
        encoded = None if state is _NOTHING else self._cache.encoding.encode(state)
        kept = []
        for step in steps:
            if step.ends:
                self._ended.add(sequence_id)
            kept.append((step.place(lease), step.request_id, step.encoded(self._end_header)))
        if sequence_id in self._live_of:  # the state includes the changes of the sequence's steps that still run
            kept += [
                (step.place(lease), step.request_id, step.encoded(self._end_header, interrupted=True))
                for step in self._live_of[sequence_id]
            ]
        elif sequence_id in self._ended:
            return Commit(lease, None, ENDED, kept)
        return Commit(lease, encoded, "", kept)

    def _roll_back(self, sequence_id: str) -> None:
        """Roll back the sequence of a failed step; a sequence that another step has ended still ends."""
        if sequence_id in self._ended:
            self._holdings.departures.add_ended(self._holdings.leases[sequence_id])
            self._holdings.drop_from_memory(sequence_id)
        else:
            self._holdings.roll_back(sequence_id)

    # Between two batches

    def rest(self) -> None:
        """Evict states from memory and sometimes sweep the store; only the former while a commit is under way."""
        if self._under_way is None:
            self._holdings.rest(self._live_of)
        else:
            self._holdings.evict(self._live_of)

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""
        self.finish_commit()
        self._holdings.end(ended)

    @property
    def store_update_due(self) -> bool:
        """Whether `update_store` has to run."""
        return self._under_way is not None or self._holdings.departures.are_due

    def update_store(self) -> None:
        """Finish a commit, or write to the store which sequences have ended and which other workers may take over."""
        if self._under_way is not None:
            self.finish_commit()
        else:
            quietly(self._holdings.departures.write)

    def close(self) -> None:
        """Release the leases, so that other workers and servers can continue the sequences immediately."""
        self.finish_commit()
        self._holdings.close()
