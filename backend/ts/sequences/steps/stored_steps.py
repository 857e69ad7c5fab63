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
not know whether a lost worker has applied a step, it sends the step again only to ask (see `StepHistory`): taking the
sequence's lease for that also prevents the lost worker from applying the step later. If the outcome remains
unknown, the step is answered with ``outcome_unknown``.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ts.context import Context
from ts.jobs.errors import device_failure
from ts.jobs.sequence_steps import StoreReports
from ts.protocol.messages import ENDED, EndedSequence, InferRow, ResultRow
from ts.sequence.sequence_cache import SequenceCache
from ts.sequences.steps.batch_commit import BatchCommit
from ts.sequences.steps.commit_thread import CommitOverlap, CommitThread
from ts.sequences.steps.holdings import Holdings, quietly
from ts.sequences.steps.kept_answers import look_up, repeated
from ts.sequences.steps.migration import Migration
from ts.sequences.steps.record import DIGEST_SIZE, Damaged, new_token
from ts.sequences.steps.request_digest import digest_of_values
from ts.sequences.steps.rules import APPLIED, DIFFERS, Refuse, Repeat, Rules, RunStep, Verdict, judge
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.step import (
    CLIENT_ASKS,
    DAMAGED,
    DELETED,
    DEVICE,
    MOVED,
    UNREADABLE,
    Step,
    StepRefusal,
    error_answer,
    refusal_answer,
    with_migration,
    with_state_size,
)
from ts.sequences.steps.steps import Steps, by_number
from ts.sequences.steps.stores.store import Commit, KeptAnswer, Lease, Store, StoreError, StoreSettings
from ts.sequences.steps.watch_thread import WatchThread
from ts.sequences.steps.written_states import WrittenStates

logger = logging.getLogger(__name__)

#: After how many steps without a state the log says that the handler seems to keep it elsewhere.
_STEPS_WITHOUT_STATE: Final = 10
#: Refusals of steps that were applied before.
_WAS_APPLIED: Final = (APPLIED, DIFFERS)


#: Makes a named tuple of its fields: on the hot path, since calling its class takes more than twice as long.
_new: Final = tuple.__new__


class StoredSteps(Steps):
    """The steps of one worker's sequences, whose states a store keeps.

    Args:
        context: The model's context, with the names of the sequence headers.
        cache: The handler's states in memory.
        rules: What the model's configuration says of steps without a number.
        max_answer: The limit in bytes beyond which the body of a streamed answer is not kept.
        max_state: The limit in bytes beyond which a state is refused.
    """

    _compares_all = True
    undoes = True

    def __init__(
        self,
        context: Context,
        cache: SequenceCache,
        store: Store,
        settings: StoreSettings,
        rules: Rules,
        *,
        max_answer: int,
        max_state: int,
        forms: str,
    ) -> None:
        super().__init__(context, cache, rules, most_kept=settings.kept, most_ids=settings.most_ids, forms=forms)
        self._states = cache
        self._store = store
        self._settings = settings
        self._max_answer = max_answer
        self._written = WrittenStates(cache, settings, max_state)
        self._steps_without_state = 0
        self._watch: WatchThread | None = None
        self._thread = CommitThread()
        self._overlap = CommitOverlap()
        #: The commit that the thread makes.
        self._under_way: BatchCommit | None = None
        #: What of it has to be written once more, and what sends the answers of that.
        self._mended: tuple[BatchCommit, Callable[[list[ResultRow]], None]] | None = None
        migration = Migration(cache, self._written.state, settings, context.metrics)
        self._holdings = Holdings(
            *(cache, self.store_when_idle, settings, self._end_live, context.metrics), migration=migration
        )

    def store_when_idle(self) -> Store:
        """Return the store, once no commit is under way."""
        self.wait_for_commit()
        return self._store

    def hand_over(self, send: Callable[[list[Any]], None], most: int) -> Mapping[str, Callable[..., Any]]:
        return {}  # the store has the states

    def listen(self, tell: Callable[[Sequence[str]], None], reports: StoreReports) -> None:
        self._watch = WatchThread(self._store.watch(reports), tell)

    # Before the handler

    def _acquire(self, steps: list[Step]) -> Mapping[str, StepRefusal]:
        if self._under_way is not None:
            uncertain = self._under_way.steps
            # That a step was not applied is true while the lease lasts: its answer must not wait for another commit.
            if any(step.sequence_id in uncertain or step.history.asks_after for step in steps):
                self.wait_for_commit()
        return self._holdings.take(steps)

    def _begin_or_answer(self, step: Step, refusals: Mapping[str, StepRefusal]) -> ResultRow | None:
        sequence_id, job_id = step.sequence_id, step.row.job_id
        refused = refusals.get(sequence_id)
        if refused is not None and not refused.needs_state:
            # The refusal says that the step was not applied, but an earlier delivery may have been: look it up.
            if step.history.was_sent:
                return look_up(self.store_when_idle(), step, self._rules)
            return refusal_answer(job_id, refused)
        lease, running = self._holdings.leases[sequence_id], 0
        record = lease.record
        if sequence_id in self._live_of:
            if (answer := self._running_twice(step)) is not None:
                return answer
            running = self._running(sequence_id, record)
        verdict = judge(step.claim, record, running, self._rules)
        if step.history.asks_after or not isinstance(verdict, RunStep):
            return self._answer_at_once(step, lease, verdict, running)
        if verdict.begins:
            self._begin_stored(step, lease)
            running = 0
        elif sequence_id in self._holdings.unreadable:
            return refusal_answer(job_id, self._holdings.unreadable[sequence_id])
        elif not record.token:
            record.token = step.claim.token or new_token()
        step.number, step.incarnation, step.token = record.last + running + 1, record.incarnation, record.token
        return None

    def _answer_at_once(self, step: Step, lease: Lease, verdict: Verdict, running: int) -> ResultRow:
        """Return the answer to a step that is not to run."""
        sequence_id, job_id = step.sequence_id, step.row.job_id
        if not (isinstance(verdict, RunStep) or running) and self._is_outdated(lease):
            self._holdings.drop_from_memory(sequence_id)
            return look_up(self._store, step, self._rules, error_answer(job_id, *MOVED))
        if isinstance(verdict, Repeat):
            return repeated(self.store_when_idle(), step, lease.record, verdict.number)
        if isinstance(verdict, Refuse) and (not step.history.asks_after or self._may_count(step, lease, verdict)):
            return error_answer(job_id, *verdict.reason)
        damaged = self._holdings.unreadable.get(sequence_id)
        if sequence_id not in self._live_of:
            # The step was not applied, so it has not ended the sequence, even if the server assumes that it has.
            self._holdings.roll_back(sequence_id)
        if damaged is not None and damaged.reason == DAMAGED and step.history.asks_after != CLIENT_ASKS:
            return refusal_answer(job_id, damaged)
        return error_answer(job_id, 500, step.history.asks_after)

    def _is_outdated(self, lease: Lease) -> bool:
        """Whether an operator has put another sequence in the place of the one that is in memory.

        A step that runs learns it when it is committed; what is answered without a commit, here.
        """
        record = lease.record
        try:
            stored = self.store_when_idle().peek(lease.sequence_id)
        except (StoreError, Damaged):
            return False  # the lease says what there was
        return (
            record.has_begun
            and stored is not None
            and stored.incarnation >= record.incarnation  # else the store has lost what this worker has brought there
            and (stored.incarnation, stored.token) != (record.incarnation, record.token)
        )

    def _may_count(self, step: Step, lease: Lease, verdict: Refuse) -> bool:
        """Whether a refused step was applied, or may have been: as a step of an earlier incarnation."""
        token = step.claim.token
        return verdict.reason in _WAS_APPLIED or (token is not None and lease.record.is_earlier(token))

    def _begin_stored(self, step: Step, lease: Lease) -> None:
        """Let a step begin an incarnation: it finds no state."""
        step.row.begins_sequence = True
        self._end_live(step.sequence_id)
        self._states.drop(step.sequence_id)
        self._holdings.unreadable.pop(step.sequence_id, None)
        self._holdings.begun(step.sequence_id)
        settings = self._settings
        lease.migrated_from, lease.whole_at, lease.has_appended = "", (), False
        lease.record.begin(step.claim.token or new_token(), settings.version, settings.state_version)

    def _release_closed(self, steps: list[Step]) -> None:
        self._holdings.release_closed(step.sequence_id for step in steps if step.sequence_id not in self._live_of)

    # After the handler

    def complete(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Commit the steps that these answers complete; return the answers to send, errors if a commit failed."""
        self.wait_for_commit()
        return self._write_and_apply(self._prepare(answers))

    def complete_and_send(
        self, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], seconds: float, *, meanwhile: bool
    ) -> None:
        """Commit the steps that these answers complete, then send the answers; perhaps in a thread, see `Steps`."""
        self.wait_for_commit()
        if seconds:  # not for a part of a stream
            now = time.perf_counter()
            self._overlap.ran(now - seconds, now, is_followed=meanwhile)
        batch = self._prepare(answers)
        if not (meanwhile and self._overlap.pays and batch.commits) or self._live or self._holdings.has_chores:
            send(self._write_and_apply(batch))
            return
        batch.answers = self._with_rolled_back(batch.answers)
        self._under_way = batch
        store = self._store

        def commit() -> None:
            batch.write(store)
            if batch.behind:
                self._mended = batch.of_behind(), send
            send(batch.answers)
            quietly(store.tidy)

        self._thread.start(commit)

    def wait_for_commit(self) -> None:
        """Wait until the commit that a thread writes is done and its answers are sent, then apply it to memory."""
        if self._under_way is None:
            return
        self._thread.wait()
        batch, self._under_way = self._under_way, None
        batch.apply(self._holdings)
        self._overlap.committed(batch.seconds)
        if self._mended is not None:
            (again, send), self._mended = self._mended, None
            self._write_whole(again, batch.behind)
            send(again.answers)

    def _prepare(self, answers: list[ResultRow]) -> BatchCommit:
        """Return the commit of the steps that these answers complete; roll back the sequences of failed steps."""
        leases = self._holdings.leases
        batch = BatchCommit(answers, self._settings.lease, self._rules)
        batch.steps, failed = self._settle(answers, self._max_answer)
        for step in failed:
            self._roll_back(step.sequence_id)
            batch.refuse(step.sequence_id, *MOVED)
            batch.steps.pop(step.sequence_id, None)
        whole: Collection[str] = ()
        if not self._written.are_ready:
            whole = self._written.prepare([leases[each] for each in batch.steps], partial(self._counted, batch))
        for sequence_id, steps in list(batch.steps.items()):
            try:
                commit = self._prepare_sequence(sequence_id, steps, whole=sequence_id in whole)
            except Exception as error:  # an encoder is the handler's code
                logger.exception("The state of %r cannot be stored", sequence_id, extra={"sequence_id": sequence_id})
                failure = device_failure(error)
                if failure is None:
                    batch.refuse(sequence_id, *UNREADABLE, f"The state cannot be stored: {error}")
                else:
                    text = f"The state was not stored, so the step does not count: {failure.message}"
                    batch.refuse(sequence_id, failure.status, DEVICE, text)
                self._roll_back(sequence_id)
                del batch.steps[sequence_id]
            else:
                batch.commits.append(commit)
                if commit.lease.migrated_from:
                    answers[steps[-1].index] = with_migration(answers[steps[-1].index])
                if (size := commit.state_size) is not None:
                    index = steps[-1].index
                    answers[index] = with_state_size(answers[index], size)
        return batch

    def undo_for_room(self, error: BaseException, sent: Sequence[InferRow]) -> bool:
        """Evict all states that no step uses if the device is full; then undo the steps, which may begin again.

        They may not if the handler has changed a body in place before it failed.
        """
        if not self._holdings.make_room(error, ()) or not all(map(self._is_unchanged, sent)):
            return False
        self.complete([error_answer(job_id, 507, DEVICE, "") for job_id in self._live])
        return True

    def _is_unchanged(self, sent: InferRow) -> bool:
        """Whether the body of a row that runs, which a handler may change, is still what the client has sent."""
        if type(sent.body) is bytes:
            return True
        step = self._live.get(sent.job_id)
        if step is None:
            return True
        return digest_of_values(sent, step.row, self._forms) == step.claim.digest[:DIGEST_SIZE]

    def _write_and_apply(self, batch: BatchCommit) -> list[ResultRow]:
        """Write a commit to the store and apply it to memory; return the answers to send."""
        batch.write(self._store)
        if batch.commits:  # not for a part of a stream
            self._overlap.committed(batch.seconds)
        batch.apply(self._holdings)
        if batch.behind:
            again = batch.of_behind()
            self._write_whole(again, batch.behind)
            return self._with_rolled_back([*batch.answers, *again.answers])
        return self._with_rolled_back(batch.answers)

    def _write_whole(self, again: BatchCommit, behind: Sequence[Commit]) -> None:
        """Write all that there is of sequences of which the store has lost acknowledged steps: memory has them."""
        ids = [commit.lease.sequence_id for commit in behind]
        logger.warning("The sequence store has lost steps of %s: they are written again", ", ".join(map(repr, ids)))
        self._states.before_commit(ids)
        for commit in behind:
            sequence_id = commit.lease.sequence_id
            try:
                again.commits.append(self._written.all_of(commit))
            except Exception as error:  # an encoder is the handler's code
                logger.exception("The state of %r cannot be stored", sequence_id, extra={"sequence_id": sequence_id})
                again.refuse(sequence_id, *UNREADABLE, f"The state cannot be stored: {error}")
                self._roll_back(sequence_id)
            else:
                self._states.committed(sequence_id)
        again.write(self._store)
        again.give_up_behind()
        again.apply(self._holdings)

    def _counted(self, batch: BatchCommit, sequence_id: str) -> int:
        """Return how many steps of a sequence a commit counts that no commit has before."""
        steps = (*batch.steps[sequence_id], *self._live_of.get(sequence_id, ()))
        return sum(not step.is_applied for step in steps)

    def _prepare_sequence(self, sequence_id: str, steps: list[Step], *, whole: bool) -> Commit:
        """Return the commit of steps, and of those of the sequence that still run: the state includes their changes.

        Raises StateError: the state cannot be encoded, or is too large; or whatever an encoder raises.
        """
        lease, running = self._holdings.leases[sequence_id], self._live_of.get(sequence_id, ())
        if not self._states.is_used:
            self._note_step_without_state()
        record, written, most_kept = lease.record, self._written, self._settings.kept
        are_whole = written.are_whole
        state, entries = (written.state(sequence_id), None) if are_whole else written.encode(lease, whole=whole)
        first = record.last + 1
        new_ids = b""
        kept: list[KeptAnswer] = []
        for step in sorted((*steps, *running), key=by_number) if running or len(steps) > 1 else steps:
            if step.ends and step not in running:
                self._ended.add(sequence_id)
            applied = step.kept
            if not step.is_applied:
                step.is_applied = True
                id_digest = step.id_digest
                record.apply(applied, most_kept, id_digest)
                new_ids += id_digest
            kept.append(_new(KeptAnswer, (applied, step.encoded(self._end_header, interrupted=step in running))))
        if new_ids and record.forget_ids_beyond(self._most_ids):
            self._warn_of_forgotten_ids(sequence_id)
        if self._states.is_rewritten(sequence_id):
            earlier = sorted((record.kept or {}).items())
            kept = [KeptAnswer(step, DELETED) for number, step in earlier if number < first] + kept
        has_log = record.checkpoint.log_from > 0
        if not running and sequence_id in self._ended:
            return Commit(lease, None, ENDED, kept, new_ids, first == 1, None, has_log)
        log: Sequence[LogEntry] | None = None
        dropped = 0
        if entries is not None:
            log = written.log(lease, first, entries, runs_on=bool(running))
        elif state is not None and written.keeps_states:
            log, has_log, dropped = written.kept(lease, first, state)
            state = None
        elif has_log or not are_whole:
            written.note_whole(lease, state)
        self._states.committed(sequence_id)
        return _new(Commit, (lease, state, "", kept, new_ids, first == 1, log, has_log, dropped))

    def _note_step_without_state(self) -> None:
        self._steps_without_state += 1
        if self._steps_without_state == _STEPS_WITHOUT_STATE:
            logger.warning(
                "handler.cache.store is set, but in %d steps the handler has kept nothing in context.state: what it"
                " keeps elsewhere is lost with this worker",
                _STEPS_WITHOUT_STATE,
            )

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
        self._states.report(self._context)

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""
        self.wait_for_commit()
        self._holdings.end(ended)

    @property
    def store_update_due(self) -> bool:
        """Whether `update_store` has to run."""
        return self._under_way is not None or self._holdings.departures.are_due

    def update_store(self) -> None:
        """Finish a commit, or write to the store which sequences have ended and which other workers may take over."""
        if self._under_way is not None:
            self.wait_for_commit()
        else:
            quietly(self._holdings.departures.write)

    def close(self) -> None:
        """Release the leases, so that other workers and servers can continue the sequences immediately."""
        self.wait_for_commit()
        if self._watch is not None:
            self._watch.close()
        self._holdings.close()
