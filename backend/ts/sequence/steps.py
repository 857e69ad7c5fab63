"""Steps of sequences, each applied exactly once, whatever process is killed.

A step is a request of a sequence, known by its **request id**: the header ``ts_request_id`` if the client sends one,
the server's own id of the job otherwise (which stays the same when the server sends the job again). The runtime

* hands each batch's rows to `Steps.begin`, which reads the states that are not in memory, answers the steps that have
  been applied before with the answer they got then, and returns the rows that are to run;
* hands the answers to `Steps.settle` before they leave, which writes all that has changed in one commit.

So an answer that has left was committed, and a step whose answer was lost is not applied again. A step counts as
applied if its handler answered it, with whatever status. One that was answered with an error (the handler raised, the
client left) was not: its sequence goes back to the state before it.

A streamed answer is committed with its last part: until then nothing has happened. If another step of the same sequence
is answered meanwhile, that commits what the stream has done so far, and the stream counts as applied; should it break
off, then whoever sends it again gets the parts that there were, with the header ``ts_stream_interrupted``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ts.context import Context
from ts.protocol.messages import REQUEST_ID, ResultRow
from ts.runtimes.rows import Row
from ts.sequence.answers import Step, error_answer, kept_answer
from ts.sequence.cache import SequenceCache
from ts.sequence.stores.store import ENDED, IDLE, TIMEOUT, Acquired, Commit, Lease, Store, StoreError, StoreSettings

logger = logging.getLogger(__name__)

#: What a client is told: the status and ``ts-error-cause``, and the message.
Refusal = tuple[tuple[int, str], str]
EXPIRED = (410, "sequence_expired")
LOST = (410, "sequence_lost")
MOVED = (409, "sequence_moved")
RUNNING = (409, "request_running")
NOT_STORED = (503, "sequence_store")
UNREADABLE = (500, "sequence_store")

_NOTHING: Final = object()
_SWEEP_INTERVAL = 60.0
#: Between two writes for nothing but ends of sequences (seconds): many end at the same moment.
_END_INTERVAL = 0.1


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
        self._restart_expired = restart_expired
        self._max_answer = max_answer
        self._leases: dict[str, Lease] = {}
        self._live: dict[str, Step] = {}  # by job id: begun and not answered to the end
        self._running: set[tuple[str, str]] = set()  # which these are: sequence and request ids
        self._interrupted: dict[str, list[Step]] = {}  # by sequence: over, and in the state that others of it work on
        self._ending: list[tuple[Lease, str]] = []
        self._leaving: list[Lease] = []
        self._next_end = self._next_sweep = 0.0

    # Before the handler

    def begin(self, rows: list[Row]) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows that are to run, and the answers to the others."""
        steps = [(row, self._step_of(row)) for row in rows]
        ids = list(dict.fromkeys(step.sequence_id for _, step in steps if step is not None))
        closed: dict[str, str] = {}
        refusals = self._lost(ids) if self._store is None else self._take(self._store, ids, closed)
        running: list[Row] = []
        answers: list[ResultRow] = []
        for row, step in steps:
            answer = None if step is None else self._admit(row.job_id, step, refusals, closed)
            if answer is None:
                running.append(row)
            else:
                answers.append(answer)
        self._cache.run(frozenset(step.sequence_id for step in self._live.values()))
        return running, answers

    def _step_of(self, row: Row) -> Step | None:
        sent, context = row.processor.get_headers_by_name(), self._context
        sequence_id = sent.get(context.header_key_sequence_id)
        if not sequence_id:
            return None  # a request to describe the model
        starts, ends = sent.get(context.header_key_sequence_start), sent.get(context.header_key_sequence_end)
        return Step(
            sequence_id,
            sent.get(REQUEST_ID) or row.job_id,
            starts=starts is not None and _is_true(starts),
            ends=ends is not None and _is_true(ends),
        )

    def _lost(self, ids: Sequence[str]) -> dict[str, Refusal]:
        text = "The state of sequence {!r} had to make room for others. Please start a new sequence."
        return {each: (LOST, text.format(each)) for each in ids if self._cache.has_lost(each)}

    def _take(self, store: Store, ids: Sequence[str], closed: dict[str, str]) -> dict[str, Refusal]:
        """Hold the leases of sequences and have their states in memory; return why some of them cannot run."""
        try:
            self._flush_ends(store)
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
        """Which of the sequences are not in memory as they are stored; leases that may be over soon are prolonged."""
        moment = time.monotonic() + self._settings.lease / 2
        missing, old = [], []
        for sequence_id in ids:
            lease = self._leases.get(sequence_id)
            if lease is None or not lease.resident:
                missing.append(sequence_id)
            elif lease.fresh_until < moment:
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
        closed[sequence_id] = acquired.closed
        self._cache.drop(sequence_id)
        if acquired.state is not None:
            try:
                self._cache.put(sequence_id, self._cache.encoding.decode(acquired.state))
            except Exception as error:  # a decoder is the handler's code
                logger.exception("The stored state of sequence %r cannot be read", sequence_id)
                self._let_go(sequence_id)
                return UNREADABLE, f"The stored state of sequence {sequence_id!r} cannot be read: {error}"
        return None

    def _admit(
        self,
        job_id: str,
        step: Step,
        refusals: dict[str, Refusal],
        closed: dict[str, str],
    ) -> ResultRow | None:
        """Let a step run, or return its answer."""
        sequence_id = step.sequence_id
        refused = refusals.get(sequence_id)
        if refused is not None and not (step.starts and refused[0] is LOST):
            return error_answer(job_id, *refused[0], refused[1])
        if self._store is not None:
            try:
                answer = self._earlier_answer(self._store, job_id, step)
            except StoreError as error:
                return error_answer(job_id, *NOT_STORED, f"The sequence store cannot be read: {error}")
            if answer is not None:
                return answer
            if closed.get(sequence_id) in {IDLE, TIMEOUT} and not (step.starts or self._restart_expired):
                self._leases.pop(sequence_id)
                text = f"Sequence {sequence_id!r} has expired. Please start a new sequence."
                return error_answer(job_id, *EXPIRED, text)
        if step.starts:
            self._cache.drop(sequence_id)
        self._live[job_id] = step
        self._running.add(step.identity)
        return None

    def _earlier_answer(self, store: Store, job_id: str, step: Step) -> ResultRow | None:
        """Return what a step has been answered with, if it was sent before."""
        if step.identity in self._running:
            return error_answer(job_id, *RUNNING, f"Request {step.request_id!r} is still running. Try again later.")
        lease = self._leases[step.sequence_id]
        if step.request_id not in lease.request_ids:
            return None
        answer = store.answer(lease, step.request_id)
        return None if answer is None else kept_answer(job_id, answer)

    # After the handler

    def settle(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Commit what the steps have done that these answers end; return the answers that may leave."""
        answered: dict[str, list[tuple[int, Step]]] = {}
        failed: list[Step] = []
        for index, answer in enumerate(answers):
            step = self._live.get(answer[0])
            if step is None:
                continue
            if step.void and not answer[1]:
                text = "Its sequence went back to an earlier state while the step ran, so the step does not count."
                answers[index] = error_answer(answer[0], *MOVED, text)
            elif answer[6] is not None:
                failed.append(step)
            else:
                step.add(answer, self._max_answer)
                if answer[1]:
                    continue
                answered.setdefault(step.sequence_id, []).append((index, step))
            del self._live[answer[0]]
            self._running.discard(step.identity)
        if self._store is None:
            return answers
        for step in failed:
            self._undo(step, answered)
        return self._commit(self._store, answers, answered) if answered else answers

    def _undo(self, step: Step, answered: dict[str, Any]) -> None:
        """A step has failed: forget what it did to the state, unless another one works on that already."""
        sequence_id = step.sequence_id
        if sequence_id in answered or any(other.sequence_id == sequence_id for other in self._live.values()):
            self._interrupted.setdefault(sequence_id, []).append(step)
        else:
            self._let_go(sequence_id)

    def _commit(
        self, store: Store, answers: list[ResultRow], answered: dict[str, list[tuple[int, Step]]]
    ) -> list[ResultRow]:
        commits: list[Commit] = []
        for sequence_id, steps in list(answered.items()):
            try:
                commits.append(self._commit_of(sequence_id, [step for _, step in steps]))
            except Exception as error:  # an encoder is the handler's code
                logger.exception("The state of sequence %r cannot be stored", sequence_id)
                self._refuse(answers, answered.pop(sequence_id), *UNREADABLE, f"The state cannot be stored: {error}")
        if not commits:
            return answers
        try:
            fresh_until = time.monotonic() + self._settings.lease
            valid = store.commit(commits)
        except StoreError as error:
            logger.error("Steps cannot be committed: %s", error)
            for steps in answered.values():
                self._refuse(answers, steps, *NOT_STORED, f"The step was not stored, so it does not count: {error}")
            return answers
        for commit, is_valid in zip(commits, valid, strict=True):
            lease = commit.lease
            if not is_valid:
                text = f"Sequence {lease.sequence_id!r} was taken over by another server: the step does not count."
                self._refuse(answers, answered[lease.sequence_id], *MOVED, text)
            elif commit.closed:
                self._let_go(lease.sequence_id)
            else:
                lease.fresh_until = fresh_until
                self._interrupted.pop(lease.sequence_id, None)
        return answers

    def _commit_of(self, sequence_id: str, steps: list[Step]) -> Commit:
        lease = self._leases[sequence_id]
        state = self._cache.peek(sequence_id, _NOTHING)
        encoded = None if state is _NOTHING else self._cache.encoding.encode(state)
        end_header = self._context.header_key_sequence_end
        ends = False
        kept = []
        for step in steps:
            ends = ends or step.ends or step.response_ends(end_header)
            kept.append((self._slot(lease, step), step.request_id, step.encoded()))
        if self._live or self._interrupted:  # what others of the sequence have done so far is in its state as well
            partly = [*self._interrupted.get(sequence_id, ())]
            partly += [each for each in self._live.values() if each.sequence_id == sequence_id]
            kept += [(self._slot(lease, step), step.request_id, step.encoded(interrupted=True)) for step in partly]
        return Commit(lease, None if ends else encoded, ENDED if ends else "", kept)

    def _slot(self, lease: Lease, step: Step) -> int:
        if step.slot is None:
            step.slot = lease.steps % self._settings.kept
            lease.steps += 1
            lease.request_ids.append(step.request_id)
        return step.slot

    def _refuse(
        self, answers: list[ResultRow], steps: list[tuple[int, Step]], status: int, cause: str, message: str
    ) -> None:
        """Answer steps with an error after all; their sequence goes back to what is stored."""
        for index, step in steps:
            answers[index] = error_answer(answers[index][0], status, cause, message)
            self._let_go(step.sequence_id)

    def _let_go(self, sequence_id: str) -> None:
        """Have nothing of a sequence in memory: its next step reads what is stored, and those that run do not count."""
        for step in self._live.values():
            if step.sequence_id == sequence_id:
                step.void = True
        self._cache.drop(sequence_id)
        self._leases.pop(sequence_id, None)
        self._interrupted.pop(sequence_id, None)

    # In between

    def rest(self) -> None:
        """The answers have left: make room in memory, and now and then in the store."""
        keep = frozenset(step.sequence_id for step in self._live.values())
        self._cache.run(keep)
        store = self._store
        if store is None:
            return
        for sequence_id in self._cache.shrink(keep):
            if sequence_id in self._leases:
                self._leases[sequence_id].resident = False
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_INTERVAL
            self._quietly(store.sweep)

    def end(self, ended: Iterable[Sequence[str]]) -> None:
        """Sequences are over: pairs of id and reason."""
        for sequence_id, reason in ended:
            lease = self._leases.get(sequence_id)
            self._let_go(sequence_id)
            if lease is not None:
                if reason in {ENDED, IDLE, TIMEOUT}:
                    self._ending.append((lease, reason))
                else:  # it goes on elsewhere, or later: this worker is about to stop, and releases all at once then
                    self._leaving.append(lease)
        store = self._store
        if store is not None and time.monotonic() >= self._next_end:
            self._next_end = time.monotonic() + _END_INTERVAL
            self._quietly(lambda: self._flush_ends(store))

    def _flush_ends(self, store: Store) -> None:
        if self._ending:
            store.end(self._ending)
            self._ending = []

    def close(self) -> None:
        """Let other workers and servers go on at once with what this one had."""
        store = self._store
        if store is None:
            return
        self._quietly(lambda: self._flush_ends(store))
        held = [*self._leases.values(), *self._leaving]
        if held:
            self._quietly(lambda: store.release(held))
        self._quietly(store.close)

    def _quietly(self, action: Any) -> None:
        """Do what nobody waits for, and what the store's own deadlines do otherwise."""
        try:
            action()
        except StoreError as error:
            logger.error("The sequence store: %s", error)


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() == "true"
