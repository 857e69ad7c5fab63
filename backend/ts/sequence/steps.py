"""Steps of sequences, each applied exactly once, whatever process is killed.

A step is a request of a sequence, known by its **request id**: the header ``ts_request_id`` if the client sends one,
the server's own id of the job otherwise (which stays the same when the server sends the job again). The runtime

* hands each batch's rows to `Steps.begin`, which reads the states that are not in memory, answers the steps that have
  been applied before with the answer they got then, and returns the rows that are to run;
* hands the answers to `Steps.settle` before they leave, which writes all that has changed in one commit.

So an answer that has left was committed, and a step whose answer was lost is not applied again. A step counts as
applied if its handler answered it, with whatever status. One that was answered with an error (the handler raised, the
client left) was not: its sequence goes back to what is stored. Another step of the sequence that runs at that moment
works on a state that is no more, so it ends with an error as well, and does not count.

A streamed answer is committed with its last part: until then nothing has happened. If another step of the same sequence
is answered meanwhile, that commits what the stream has done so far, and the stream counts as applied; should it break
off after that, then whoever sends it again gets the parts that there were, with the header ``ts_stream_interrupted``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ts.context import Context
from ts.protocol.messages import REQUEST_ID, ResultRow
from ts.runtimes.rows import Row
from ts.sequence.answers import Step, kept_answer
from ts.sequence.cache import SequenceCache
from ts.sequence.departures import Departures, quietly
from ts.sequence.refusals import (
    EXPIRED,
    LOST,
    MOVED,
    NOT_STORED,
    ROLLED_BACK,
    RUNNING,
    UNREADABLE,
    Refusal,
    error_answer,
)
from ts.sequence.stores.store import ENDED, IDLE, TIMEOUT, Acquired, Commit, Lease, Store, StoreError, StoreSettings

logger = logging.getLogger(__name__)

_NOTHING: Final = object()
_SWEEP_INTERVAL = 60.0


class Steps:
    """The steps of one worker's sequences.

    Args:
        context: The model's context, which knows the cache and the names of the headers.
        cache: Where the handler keeps the states.
        store: What is beneath it; None: nothing.
        settings: What the store was told.
        restart_expired: Whether a step of a sequence that is over begins a new one instead of being refused.
        max_answer: The largest body in bytes that is kept of a streamed answer.
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
        self._kept = settings.kept
        self._end_header = context.header_key_sequence_end.lower()
        self._restart_expired = restart_expired
        self._max_answer = max_answer
        self._leases: dict[str, Lease] = {}
        self._live: dict[str, Step] = {}  # by job id: begun and not answered to the end
        self._live_of: dict[str, list[Step]] = {}  # the same by sequence
        self._void: list[ResultRow] = []  # what steps are to be told that had to end
        self._ended: set[str] = set()  # sequences that are over as soon as nothing of them runs
        self._departures = None if store is None else Departures(store)
        self._next_sweep = 0.0
        cache.run(self._live_of)

    # Before the handler

    def begin(self, rows: list[Row]) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows that are to run, and the answers to the others."""
        steps, running = [], []
        for row in rows:
            step = self._step_of(row)
            if step is None:  # a request to describe the model
                running.append(row)
            else:
                steps.append(step)
        refusals, closed = self._ready(steps)
        answers: list[ResultRow] = []
        for step in steps:
            answer = self._admit(step, refusals, closed)
            if answer is None:
                running.append(step.row)
            else:
                answers.append(answer)
        return running, self._with_void(answers)

    def _step_of(self, row: Row) -> Step | None:
        sent, context = row.processor.get_headers_by_name(), self._context
        sequence_id = sent.get(context.header_key_sequence_id)
        if not sequence_id:
            return None
        starts, ends = sent.get(context.header_key_sequence_start), sent.get(context.header_key_sequence_end)
        return Step(
            row,
            sequence_id,
            sent.get(REQUEST_ID) or row.job_id,
            starts is not None and _is_true(starts),
            ends is not None and _is_true(ends),
        )

    def _ready(self, steps: list[Step]) -> tuple[dict[str, Refusal], dict[str, str]]:
        """Have states and leases; return which sequences are refused, and which are over, and why."""
        store = self._store
        if store is None:
            text = "The state of sequence {!r} had to make room for others. Please start a new sequence."
            ids = [step.sequence_id for step in steps]
            return {each: (LOST, text.format(each)) for each in ids if self._cache.has_lost(each)}, {}
        # What others may have taken over soon is looked after as well as what is not here.
        moment, leases = time.monotonic() + self._settings.lease / 2, self._leases
        wanted = []
        for step in steps:
            lease = leases.get(step.sequence_id)
            if lease is None or lease.fresh_until < moment or not lease.resident:
                wanted.append(step.sequence_id)
        closed: dict[str, str] = {}
        return self._take(store, list(dict.fromkeys(wanted)), closed) if wanted else {}, closed

    def _take(self, store: Store, ids: Sequence[str], closed: dict[str, str]) -> dict[str, Refusal]:
        """Hold the leases of sequences and have their states in memory; return why some of them cannot run."""
        try:
            if self._departures is not None:
                self._departures.tell()
            missing = self._missing(store, ids)
            acquired = store.acquire(missing) if missing else []
        except StoreError as error:
            logger.error("Sequences cannot be read: %s", error)
            return dict.fromkeys(ids, (NOT_STORED, f"The sequence store cannot be read, so nothing was done: {error}"))
        refusals = {}
        for sequence_id, each in zip(missing, acquired, strict=True):
            refusal = self._install(sequence_id, each, closed)
            if refusal is not None:
                refusals[sequence_id] = refusal
        return refusals

    def _missing(self, store: Store, ids: Sequence[str]) -> list[str]:
        """Which of the sequences are not in memory as they are stored; the leases of the others are prolonged."""
        missing, old = [], []
        for sequence_id in ids:
            lease = self._leases.get(sequence_id)
            if lease is None or not lease.resident:
                missing.append(sequence_id)
            else:
                old.append(lease)
        if old:
            fresh_until = time.monotonic() + self._settings.lease
            for lease, held in zip(old, store.renew(old), strict=True):
                if held:
                    lease.fresh_until = fresh_until
                else:  # another one has taken it meanwhile
                    self._let_go(lease.sequence_id)
                    missing.append(lease.sequence_id)
        return missing

    def _install(self, sequence_id: str, acquired: Acquired, closed: dict[str, str]) -> Refusal | None:
        if acquired.lease is None:
            return MOVED, f"Sequence {sequence_id!r} is run by another server now. Try again a little later."
        self._leases[sequence_id] = acquired.lease
        if acquired.closed:
            closed[sequence_id] = acquired.closed
        self._cache.drop(sequence_id)
        if acquired.state is not None:
            try:
                self._cache.put(sequence_id, self._cache.encoding.decode(acquired.state))
            except Exception as error:  # a decoder is the handler's code
                logger.exception("The state of %r cannot be read", sequence_id, extra={"sequence_id": sequence_id})
                self._let_go(sequence_id)
                self._release(acquired.lease)
                return UNREADABLE, f"The stored state of sequence {sequence_id!r} cannot be read: {error}"
        return None

    def _admit(self, step: Step, refusals: dict[str, Refusal], closed: dict[str, str]) -> ResultRow | None:
        """Let a step run, or return its answer."""
        sequence_id, job_id = step.sequence_id, step.row.job_id
        if refusals:
            refused = refusals.get(sequence_id)
            if refused is not None and not (step.starts and refused[0] is LOST):
                return error_answer(job_id, *refused[0], refused[1])
        if self._store is not None:
            try:
                answer = self._earlier_answer(self._store, step)
            except StoreError as error:
                return error_answer(job_id, *NOT_STORED, f"The sequence store cannot be read: {error}")
            if answer is not None:
                return answer
            if closed and closed.get(sequence_id) in {IDLE, TIMEOUT} and not (step.starts or self._restart_expired):
                self._release(self._leases.pop(sequence_id))
                text = f"Sequence {sequence_id!r} has expired. Please start a new sequence."
                return error_answer(job_id, *EXPIRED, text)
        if step.starts:
            self._cache.drop(sequence_id)
        self._live[job_id] = step
        others = self._live_of.get(sequence_id)
        if others is None:
            self._live_of[sequence_id] = [step]
        else:
            others.append(step)
        return None

    def _earlier_answer(self, store: Store, step: Step) -> ResultRow | None:
        """Return what a step has been answered with, if it was sent before."""
        request_id, job_id = step.request_id, step.row.job_id
        for other in self._live_of.get(step.sequence_id, ()):
            if other.request_id == request_id:
                return error_answer(job_id, *RUNNING, f"Request {request_id!r} is still running. Try again later.")
        lease = self._leases[step.sequence_id]
        if request_id not in lease.request_ids:
            return None
        answer = store.answer(lease, request_id)
        return None if answer is None else kept_answer(job_id, answer)

    # After the handler

    def settle(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Commit what the steps have done that these answers end; return the answers that may leave."""
        live = self._live
        answered: dict[str, list[Step]] = {}
        failed: list[Step] = []
        for index, answer in enumerate(answers):
            step = live.get(answer[0])
            if step is None:
                continue
            if answer[6] is None:
                step.add(answer, self._max_answer)
                if answer[1]:
                    continue
                step.index = index
                answered.setdefault(step.sequence_id, []).append(step)
            else:
                failed.append(step)
            self._leave(step)
        store = self._store
        if store is None:
            return answers
        for step in failed:
            self._go_back(step.sequence_id)
            self._refuse(answers, answered.pop(step.sequence_id, ()), *MOVED, ROLLED_BACK)
        if answered:
            self._commit(store, answers, answered)
        return self._with_void(answers)

    def _leave(self, step: Step) -> None:
        """A step has been answered to its end."""
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
        try:
            fresh_until = time.monotonic() + self._settings.lease
            valid = store.commit(commits)
        except StoreError as error:
            logger.error("Steps cannot be committed: %s", error)
            for steps in answered.values():
                self._refuse(answers, steps, *NOT_STORED, f"The step was not stored, so it does not count: {error}")
            return
        for commit, is_valid in zip(commits, valid, strict=True):
            lease = commit.lease
            if not is_valid:
                text = f"Sequence {lease.sequence_id!r} was taken over by another server: the step does not count."
                self._refuse(answers, answered[lease.sequence_id], *MOVED, text)
            elif commit.closed:
                self._let_go(lease.sequence_id)
            else:
                lease.fresh_until = fresh_until

    def _commit_of(self, sequence_id: str, steps: list[Step]) -> Commit:
        lease = self._leases[sequence_id]
        state = self._cache.peek(sequence_id, _NOTHING)
        encoded = None if state is _NOTHING else self._cache.encoding.encode(state)
        kept = []
        for step in steps:
            if step.ends or step.response_ends(self._end_header):
                self._ended.add(sequence_id)
            kept.append((self._slot(lease, step), step.request_id, step.encoded()))
        if sequence_id in self._live_of:  # what others of the sequence have done so far is in its state as well
            others = self._live_of[sequence_id]
            kept += [(self._slot(lease, step), step.request_id, step.encoded(interrupted=True)) for step in others]
        elif sequence_id in self._ended:
            return Commit(lease, None, ENDED, kept)
        return Commit(lease, encoded, "", kept)

    def _slot(self, lease: Lease, step: Step) -> int:
        slot = step.slot
        if slot is None:
            slot = step.slot = lease.steps % self._kept
            lease.steps += 1
            lease.request_ids.append(step.request_id)
        return slot

    def _refuse(self, answers: list[ResultRow], steps: Iterable[Step], status: int, cause: str, message: str) -> None:
        """Answer steps with an error after all; their sequence goes back to what is stored."""
        for step in steps:
            answers[step.index] = error_answer(step.row.job_id, status, cause, message)
            self._let_go(step.sequence_id)

    def _go_back(self, sequence_id: str) -> None:
        """A step has failed: forget what it did to the state; but what another one has ended is over all the same."""
        if sequence_id in self._ended and self._departures is not None:
            self._departures.ended(self._leases[sequence_id], ENDED)
        self._let_go(sequence_id)

    def _let_go(self, sequence_id: str) -> None:
        """Have nothing of a sequence in memory: its next step reads what is stored, and those that run have to end."""
        for step in self._live_of.pop(sequence_id, ()):
            del self._live[step.row.job_id]
            if not step.row.done:
                step.row.done = True
                self._void.append(error_answer(step.row.job_id, *MOVED, ROLLED_BACK))
        self._cache.drop(sequence_id)
        self._leases.pop(sequence_id, None)
        self._ended.discard(sequence_id)

    def _with_void(self, answers: list[ResultRow]) -> list[ResultRow]:
        if self._void:
            answers = [*answers, *self._void]
            self._void = []
        return answers

    # In between

    def rest(self) -> None:
        """The answers have left: make room in memory, and now and then in the store."""
        store = self._store
        if store is None:
            return
        for sequence_id in self._cache.shrink(self._live_of):
            if sequence_id in self._leases:
                self._leases[sequence_id].resident = False
        quietly(store.tidy)
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_INTERVAL
            quietly(store.sweep)

    def end(self, ended: Iterable[Sequence[str]]) -> None:
        """Sequences are over: pairs of id and reason."""
        for sequence_id, reason in ended:
            lease = self._leases.get(sequence_id)
            self._let_go(sequence_id)
            if lease is None or self._departures is None:
                continue
            if reason in {ENDED, IDLE, TIMEOUT}:
                self._departures.ended(lease, reason)
            else:  # it goes on elsewhere, or later
                self._departures.released([lease])
        if self._departures is not None:
            self._departures.tell_soon()

    def _release(self, lease: Lease) -> None:
        """Let anybody have a sequence that was taken for nothing."""
        if self._departures is not None:
            self._departures.released([lease])
            self._departures.tell_soon()

    def close(self) -> None:
        """Let other workers and servers go on at once with what this one had."""
        if self._store is not None and self._departures is not None:
            self._departures.released(self._leases.values())
            quietly(self._departures.tell)
            quietly(self._store.close)


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1")
