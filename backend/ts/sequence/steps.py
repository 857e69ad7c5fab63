"""Steps of sequences, each applied exactly once, even if a worker or server is killed at any moment.

A step is a request of a sequence, identified by its **request id**: the header ``ts_request_id`` if the client sends
one, otherwise the server's id of the job (which stays the same when the server sends the job again). The runtime

* passes each batch's rows to `Steps.begin`, which reads the states that are not in memory, answers repeated steps with
  their kept answers, and returns the rows to run;
* passes the answers to `Steps.settle` before they leave, which writes all changes in one commit.

Hence every answer that has left was committed, and a step whose answer was lost is not applied again. A step is applied
if the handler returned an answer, with any status. A step that ended with an error (the handler raised, the client
left) is not applied: its sequence is rolled back to the stored state. Other steps of the sequence that run at that
moment use a state that was rolled back, so they end with an error too and are not applied.

A streamed answer is committed with its last part; before that, the step has no stored effect. If another step of the
same sequence ends while the stream runs, the commit of that step includes the changes that the stream has made so far,
and the stream counts as applied. If the stream breaks off after such a commit, a repeated request gets the parts that
were stored, with the header ``ts_stream_interrupted``.

The client never gets a guess. If a commit fails, the worker asks the store whether it was written. If the server does
not know whether a lost worker has applied a step, it sends the step again with `History`'s ``only ask``: taking the
sequence's lease for that query also prevents the lost worker from applying the step later. If the outcome remains
unknown, the step is answered with ``outcome_unknown``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ts.context import Context
from ts.protocol.messages import NO_HISTORIES, REQUEST_ID, EndedSequence, Histories, InferRow, ResultRow
from ts.runtimes.rows import Row
from ts.sequence.answers import NEW, Past, Step
from ts.sequence.cache import SequenceCache
from ts.sequence.holdings import Holdings
from ts.sequence.kept_answers import answer_again, first_had_body, look_up, unknown
from ts.sequence.refusals import (
    BROKEN_OFF,
    EXPIRED,
    LOST,
    MOVED,
    NOT_APPLIED,
    NOT_STORED,
    NOT_TOLD,
    ROLLED_BACK,
    RUNNING,
    UNKNOWN,
    UNREADABLE,
    Refusal,
    error_answer,
)
from ts.sequence.repetition import digest_of, is_repeated
from ts.sequence.stores.store import ENDED, Commit, Lease, Store, StoreError, StoreSettings

logger = logging.getLogger(__name__)

_NOTHING: Final = object()


class Steps:
    """The steps of one worker's sequences.

    Args:
        store: Stores the states durably; None keeps them in memory only.
        restart_expired: Whether a step of a sequence that has expired begins a new one instead of being refused.
        max_answer: The limit in bytes beyond which the body of a streamed answer is not kept.
    """

    def __init__(
        self,
        context: Context,
        cache: SequenceCache,
        store: Store | None,
        settings: StoreSettings,
        *,
        restart_expired: bool,
        max_answer: int,
    ) -> None:
        self._context = context
        self._cache = cache
        self._store = store
        self._settings = settings
        self._end_header = context.header_key_sequence_end.lower()
        self._restart_expired = restart_expired
        self._max_answer = max_answer
        self._holdings = None if store is None else Holdings(cache, store, settings, self._end_live)
        self._live: dict[str, Step] = {}  # by job id: the steps that have begun and lack their last answer
        self._live_of: dict[str, list[Step]] = {}  # the same steps by sequence id
        self._void: list[ResultRow] = []  # unsent error answers of steps whose sequence was rolled back
        self._ended: set[str] = set()  # sequences that end as soon as none of their steps runs
        cache.run(self._live_of)

    # Before the handler

    def begin(
        self, rows: list[Row], wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES
    ) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows to run, and the answers to the other rows.

        Args:
            wire_rows: The wire rows of these requests, perhaps among others.
            histories: By job id, earlier deliveries of some requests; see `ts.protocol.messages.History`.
        """
        steps, running = [], []
        for row in rows:
            step = self._step_of(row, histories)
            if step is None:  # a request to describe the model
                running.append(row)
            else:
                steps.append(step)
        refusals = self._lost(steps) if self._holdings is None else self._holdings.take(steps)
        answers: list[ResultRow] = []
        for step in steps:
            answer = self._admit(step, refusals, wire_rows)
            if answer is None:
                running.append(step.row)
            else:
                answers.append(answer)
        if self._holdings is not None:
            self._holdings.give_back_closed(step.sequence_id for step in steps)
        if self._void:  # a start marker ends the steps of its sequence that run, also those of this batch
            running = [row for row in running if not row.done]
        return running, self._with_void(answers)

    def _step_of(self, row: Row, histories: Histories) -> Step | None:
        sent, context = row.processor.get_headers_by_name(), self._context
        sequence_id = sent.get(context.header_key_sequence_id)
        if not sequence_id:
            return None
        starts, ends = sent.get(context.header_key_sequence_start), sent.get(context.header_key_sequence_end)
        return Step(
            row,
            sequence_id,
            sent.get(REQUEST_ID) or row.job_id,
            starts=starts is not None and _is_true(starts),
            ends=ends is not None and _is_true(ends),
            history=Past(*histories[row.job_id]) if row.job_id in histories else NEW,
        )

    def _lost(self, steps: list[Step]) -> dict[str, Refusal]:
        """Return the refusals of sequences whose states were dropped from memory, for a model without a store."""
        text = "The state of sequence {!r} had to make room for others. Please start a new sequence."
        ids = [step.sequence_id for step in steps]
        return {each: (LOST, text.format(each)) for each in ids if self._cache.has_lost(each)}

    def _admit(self, step: Step, refusals: Mapping[str, Refusal], wire_rows: Sequence[InferRow]) -> ResultRow | None:
        """Register a step as running and return None, or return the answer to a step that is not to run."""
        sequence_id, job_id = step.sequence_id, step.row.job_id
        if refusals:
            refused = refusals.get(sequence_id)
            if refused is not None and not (step.starts and refused[0] is LOST):
                # The refusal says that the step was not applied, but an earlier delivery may have been: look it up.
                if self._store is not None and step.history.was_sent:
                    return look_up(self._store, step)
                return error_answer(job_id, *refused[0], refused[1])
        if self._holdings is not None and self._store is not None:
            answer = self._answer_at_once(self._holdings, self._store, step, wire_rows)
            if answer is not None:
                return answer
        elif step.starts:
            self._cache.drop(sequence_id)
        self._live[job_id] = step
        others = self._live_of.get(sequence_id)
        if others is None:
            self._live_of[sequence_id] = [step]
        else:
            others.append(step)
        return None

    def _answer_at_once(
        self, holdings: Holdings, store: Store, step: Step, wire_rows: Sequence[InferRow]
    ) -> ResultRow | None:
        """Return the answer to a step that is not to run; otherwise prepare its sequence's state and return None."""
        sequence_id, request_id, job_id = step.sequence_id, step.request_id, step.row.job_id
        lease = holdings.leases[sequence_id]
        if any(other.request_id == request_id for other in self._live_of.get(sequence_id, ())):
            return error_answer(job_id, *RUNNING, f"Request {request_id!r} is still running. Try again later.")
        if step.starts or lease.closed or lease.awaits_first:  # the step may be the first of an incarnation
            step.digest = next(digest_of(wire_row[3]) for wire_row in wire_rows if wire_row[0] == job_id)
        try:
            is_same = partial(first_had_body, store, lease, step.digest)
            if is_repeated(step, lease, restart_expired=self._restart_expired, has_same_body=is_same):
                return answer_again(store, step, lease)
        except StoreError as error:
            logger.error("The sequence store cannot tell whether a step was applied: %s", error)
            return unknown(step)
        if step.history.only_ask:
            if sequence_id not in self._live_of:
                # The step was not applied, so it has not ended the sequence, even if the server assumes that it has.
                holdings.drop(sequence_id)
            return error_answer(job_id, 500, step.history.only_ask, NOT_APPLIED)
        if lease.closed not in {"", ENDED} and not (step.starts or self._restart_expired):
            text = f"Sequence {sequence_id!r} has expired. Please start a new sequence."
            return error_answer(job_id, *EXPIRED, text)
        if lease.closed or step.starts:
            self._end_live(sequence_id)
            self._cache.drop(sequence_id)
            if not lease.awaits_first:
                lease.begin_anew()
            lease.closed = ""
        if lease.awaits_first:
            step.is_first, lease.awaits_first = True, False
        else:
            step.digest = b""
        holdings.begun(sequence_id)
        return None

    # After the handler

    def settle(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Commit the steps that these answers complete; return the answers to send, errors if a commit failed."""
        live = self._live
        answered: dict[str, list[Step]] = {}
        failed: list[Step] = []
        for index, answer in enumerate(answers):
            step = live.get(answer[0])
            if step is None:
                continue
            if answer[6] is None:
                step.add(answer, self._max_answer, self._end_header)
                if answer[1]:
                    continue
                step.index = index
                answered.setdefault(step.sequence_id, []).append(step)
            else:
                failed.append(step)
            self._leave(step)
        if self._holdings is None or self._store is None:
            return answers
        for step in failed:
            self._go_back(self._holdings, step.sequence_id)
            self._refuse(answers, answered.pop(step.sequence_id, ()), *MOVED, ROLLED_BACK)
        if answered:
            self._commit(self._store, answers, answered)
        return self._with_void(answers)

    def _leave(self, step: Step) -> None:
        """Remove a step that has its last answer from the running steps."""
        del self._live[step.row.job_id]
        of_its_sequence = self._live_of[step.sequence_id]
        if len(of_its_sequence) == 1:
            del self._live_of[step.sequence_id]
        else:
            of_its_sequence.remove(step)

    def _commit(self, store: Store, answers: list[ResultRow], answered: dict[str, list[Step]]) -> None:
        commits: list[Commit] = []
        for sequence_id, steps in list(answered.items()):
            try:
                commits.append(self._commit_of(sequence_id, steps))
            except Exception as error:  # an encoder is the handler's code
                logger.exception("The state of %r cannot be stored", sequence_id, extra={"sequence_id": sequence_id})
                self._refuse(answers, answered.pop(sequence_id), *UNREADABLE, f"The state cannot be stored: {error}")
        if not commits:
            return
        fresh_until = time.monotonic() + self._settings.lease
        try:
            written = store.commit(commits)
        except StoreError as error:
            logger.error("Steps cannot be committed: %s", error)
            self._settle_failed(store, answers, answered, commits, error)
            return
        for commit, was_written in zip(commits, written, strict=True):
            lease = commit.lease
            if not was_written:
                self._taken_over(store, answers, answered[lease.sequence_id], lease, certainly=was_written is False)
            elif commit.closed:
                self._let_go(lease.sequence_id)
            else:
                lease.fresh_until = fresh_until

    def _settle_failed(
        self,
        store: Store,
        answers: list[ResultRow],
        answered: dict[str, list[Step]],
        commits: list[Commit],
        error: StoreError,
    ) -> None:
        """Answer each step of a commit that has failed but may still have been written."""
        settled: list[bool | None] = [None] * len(commits)
        try:
            settled = store.settle(commits)
        except StoreError as doubt:
            logger.error("The sequence store cannot tell whether steps were committed: %s", doubt)
        for commit, was_written in zip(commits, settled, strict=True):
            sequence_id = commit.lease.sequence_id
            if was_written is None:
                self._refuse(answers, answered[sequence_id], *UNKNOWN, f"{NOT_TOLD} {error}")
            elif not was_written:
                text = f"The step was not stored, so it does not count: {error}"
                self._refuse(answers, answered[sequence_id], *NOT_STORED, text)
            else:
                self._let_go(sequence_id)

    def _taken_over(
        self, store: Store, answers: list[ResultRow], steps: list[Step], lease: Lease, *, certainly: bool
    ) -> None:
        """Answer steps whose lease another holder has taken; ``certainly``: their commit was certainly not written."""
        text = f"Sequence {lease.sequence_id!r} was taken over by another server: the step does not count."
        for step in steps:
            otherwise = error_answer(step.row.job_id, *MOVED, text) if certainly else None
            answers[step.index] = look_up(store, step, lease.incarnation, otherwise)
        self._let_go(lease.sequence_id)

    def _commit_of(self, sequence_id: str, steps: list[Step]) -> Commit:
        if self._holdings is None:
            raise ValueError("there is no store to commit to")
        lease = self._holdings.leases[sequence_id]
        state = self._cache.peek(sequence_id, _NOTHING)
        encoded = None if state is _NOTHING else self._cache.encoding.encode(state)
        kept = []
        for step in steps:
            if step.ends:
                self._ended.add(sequence_id)
            kept.append((step.place(lease), step.request_id, step.encoded()))
        if sequence_id in self._live_of:  # the state includes the changes of the sequence's steps that still run
            others = self._live_of[sequence_id]
            kept += [(step.place(lease), step.request_id, step.encoded(interrupted=True)) for step in others]
        elif sequence_id in self._ended:
            return Commit(lease, None, ENDED, kept)
        return Commit(lease, encoded, "", kept)

    def _refuse(self, answers: list[ResultRow], steps: Iterable[Step], status: int, cause: str, message: str) -> None:
        """Replace the answers to steps by an error; roll their sequence back to the stored state."""
        for step in steps:
            answers[step.index] = error_answer(step.row.job_id, status, cause, message)
            self._let_go(step.sequence_id)

    def _go_back(self, holdings: Holdings, sequence_id: str) -> None:
        """Roll back the sequence of a failed step; a sequence that another step has ended still ends."""
        if sequence_id in self._ended:
            holdings.has_ended(sequence_id)
            holdings.let_go(sequence_id)
        else:
            holdings.drop(sequence_id)

    def _let_go(self, sequence_id: str) -> None:
        """Drop a sequence from memory and end its running steps; the sequence's next step reads the stored state."""
        if self._holdings is not None:
            self._holdings.let_go(sequence_id)

    def _end_live(self, sequence_id: str) -> None:
        """End the running steps of a sequence with an error, because they use a state that was rolled back."""
        for step in self._live_of.pop(sequence_id, ()):
            del self._live[step.row.job_id]
            if not step.row.done:
                step.row.done = True
                told = (*MOVED, ROLLED_BACK) if step.slot is None else (*UNKNOWN, BROKEN_OFF)
                self._void.append(error_answer(step.row.job_id, *told))
        self._ended.discard(sequence_id)

    def _with_void(self, answers: list[ResultRow]) -> list[ResultRow]:
        if self._void:
            answers = [*answers, *self._void]
            self._void = []
        return answers

    # Between two batches

    def rest(self) -> None:
        """Do the deferred work after answers have left: evict states from memory, and sometimes sweep the store."""
        if self._holdings is not None:
            self._holdings.rest(self._live_of)

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""
        if self._holdings is None:
            for sequence_id, _, _ in ended:
                self._end_live(sequence_id)
                self._cache.drop(sequence_id)
        else:
            self._holdings.end(ended)

    @property
    def has_news(self) -> bool:
        """Whether the store has to be told of sequences that left this worker, see `tell`."""
        return self._holdings is not None and self._holdings.departures_wait

    def tell(self) -> None:
        """Tell the store which sequences have ended, and which other workers may take over."""
        if self._holdings is not None:
            self._holdings.tell_departures()

    def close(self) -> None:
        """Release the leases, so that other workers and servers can continue the sequences immediately."""
        if self._holdings is not None:
            self._holdings.close()


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1")
