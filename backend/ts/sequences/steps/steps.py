"""Steps of sequences: which requests of a sequence run, and which get an answer at once instead.

A step is a request of a sequence. `rules` says what becomes of it, by its number, its token and its request
id: the header ``ts_request_id`` if the client sends one, otherwise the server's id of the job (which stays the same
when the server sends the job again). The runtime

* passes each batch's rows to `Steps.begin`, which returns the rows to run, and the answers to the other rows;
* passes the answers to `Steps.complete` before they leave.

`Steps` remembers the sequences that are open at this worker, and keeps their states, if the handler has a
`SequenceCache`, in memory only; `stored_steps` keeps both in a store.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ts.context import Context
from ts.jobs.row import Row
from ts.jobs.sequence_steps import StoreReports
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    ANSWER_TOKEN,
    NO_HISTORIES,
    REQUEST_ID,
    SEQUENCE_TOKEN,
    STEP_NUMBER,
    EndedSequence,
    Histories,
    InferRow,
    ResultRow,
    SequenceNews,
)
from ts.sequence.sequence_cache import SequenceCache
from ts.sequences.handover.give_and_take import Handover, OpenSequences
from ts.sequences.steps.prepared import prepare
from ts.sequences.steps.record import KeptStep, SequenceRecord, new_token
from ts.sequences.steps.request_digest import digest_of_request, digest_of_values
from ts.sequences.steps.rules import APPLIED, RUNNING, Claim, Refuse, Repeat, Rules, RunStep, judge
from ts.sequences.steps.step import (
    BROKEN_OFF,
    CLIENT_ASKS,
    LOST,
    MOVED,
    NEW,
    TOO_LARGE,
    UNKNOWN,
    KeptFields,
    Step,
    StepRefusal,
    error_answer,
    news_of,
    repeated_answer,
)

logger = logging.getLogger(__name__)

#: The body of a larger answer (bytes) is not kept in memory for a client that asks again.
_LARGEST_KEPT = 16_384
#: Makes a named tuple of its fields: on the hot path, since calling its class takes more than twice as long.
_new: Final = tuple.__new__

by_number: Final[Callable[[Step], int]] = attrgetter("number")
_job_id: Final = attrgetter("job_id")


class _Earlier(NamedTuple):
    """The incarnation that one replaces of which no step is applied yet."""

    record: SequenceRecord
    answers: dict[int, KeptFields] | None


class Steps:
    """The steps of one worker's sequences.

    Args:
        context: The model's context, with the names of the sequence headers.
        cache: The states in memory.
        rules: What the model's configuration says of steps without a number.
        most_kept: Of how many of the latest steps the answers are kept, besides the first.
        most_ids: How many request ids of an incarnation are remembered.
        forms: The module that parses forms, as of `ts.runtime.decoded_rows.read_row`.
    """

    #: Whether the bodies of all steps are compared with those that were sent before, or only of those with a name.
    _compares_all = False
    #: Whether a step whose handler has returned can still be undone; in memory it cannot.
    undoes = False

    def __init__(
        self, context: Context, cache: SequenceCache, rules: Rules, *, most_kept: int, most_ids: int, forms: str
    ) -> None:
        self._context = context
        self._cache = cache
        self._rules = rules
        self._most_kept = most_kept
        self._most_ids = most_ids
        self._forms = forms
        self._warned_of_ids = False
        self._id_header = context.header_key_sequence_id
        self._start_header = context.header_key_sequence_start
        self._end_header = context.header_key_sequence_end
        #: What says more of a step than its sequence.
        self._says_more = frozenset((STEP_NUMBER, REQUEST_ID, SEQUENCE_TOKEN, self._start_header, self._end_header))
        self._live: dict[str, Step] = {}  # by job id: the steps that have begun and lack their last answer
        self._live_of: dict[str, list[Step]] = {}  # the same steps by sequence id
        self._rolled_back: list[ResultRow] = []  # unsent error answers of steps whose sequence was rolled back
        self._ended: set[str] = set()  # sequences that end as soon as none of their steps runs
        cache.run(self._live_of)
        #: Of the sequences that are open at this worker.
        self._records: dict[str, SequenceRecord] = {}
        #: Answers by sequence and number, for the steps that `SequenceRecord.kept` has.
        self._answers: dict[str, dict[int, KeptFields]] = {}
        #: What comes back if no step of the present incarnation is applied.
        self._earlier: dict[str, _Earlier] = {}
        self._handover = Handover(OpenSequences(self._records, self._answers, self._live_of), cache)

    def begin(
        self, rows: list[Row], wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES
    ) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows to run, and the answers to the other rows.

        Args:
            rows: The decoded requests.
            wire_rows: The wire rows of these requests, perhaps among others.
            histories: By job id, earlier deliveries of some requests; see `ts.protocol.messages.StepHistory`.
        """
        steps, running = self._steps_of(rows, wire_rows, histories)
        refusals = self._acquire(steps)
        answers: list[ResultRow] = []
        live, live_of = self._live, self._live_of
        for step in steps:
            answer = self._begin_or_answer(step, refusals)
            if answer is None:
                row = step.row
                live[row.job_id] = step
                live_of.setdefault(step.sequence_id, []).append(step)
                running.append(row)
            else:
                answers.append(answer)
        if answers:
            self._release_closed(steps)
        if self._rolled_back:  # a start marker ends the steps of its sequence that run, also those of this batch
            running = [row for row in running if not row.done]
        if unready := [(row, row.prepare) for row in running if row.prepare is not None]:
            prepared = [answer for row, make in unready if (answer := prepare(row, make, self.tell)) is not None]
            if prepared:
                answers += self.complete(prepared)
                running = [row for row in running if not row.done]
        return running, self._with_rolled_back(answers)

    def _steps_of(
        self, rows: list[Row], wire_rows: Sequence[InferRow], histories: Histories
    ) -> tuple[list[Step], list[Row]]:
        """Return the steps, and the rows that are none: requests to describe the model."""
        sent = dict(zip(map(_job_id, wire_rows), wire_rows, strict=True))
        compares_all, says_more, id_header = self._compares_all, self._says_more, self._id_header
        steps, others = [], []
        for row in rows:
            headers = row.get_headers_by_name()
            sequence_id = headers.get(id_header)
            if not sequence_id:
                others.append(row)
                continue
            step = Step(row, sequence_id)
            row.sequence_id = sequence_id
            if not says_more.isdisjoint(headers) or row.job_id in histories:
                self._read_claim(step, headers.get, sent, histories)
            elif compares_all:
                job_id = row.job_id
                digest = digest_of_values(sent[job_id], row, self._forms)
                step.claim = _new(Claim, (None, None, job_id, False, False, digest, False, True))
            steps.append(step)
        return steps, others

    def _read_claim(
        self, step: Step, sent: Callable[[str], Any], wire_rows: Mapping[str, InferRow], histories: Histories
    ) -> None:
        """Read what a request says of its step, besides its sequence, and what the server does; ``sent``: a header."""
        row, job_id = step.row, step.row.job_id
        starts, ends = sent(self._start_header), sent(self._end_header)
        number, request_id = sent(STEP_NUMBER), sent(REQUEST_ID)
        history = histories.get(job_id, NEW)
        asks = history.asks_after == CLIENT_ASKS
        is_named = number is not None or bool(request_id)
        needs_digest = (self._compares_all or is_named) and not asks
        digest = b""
        if needs_digest:
            digest = digest_of_request(wire_rows[job_id], row, self._forms, is_named=is_named)
        fields = (
            None if number is None else int(number),
            sent(SEQUENCE_TOKEN),
            request_id or job_id,
            bool(request_id),
            starts is not None and _is_true(starts),
            digest,
            asks,
            not (request_id or history.was_sent or history.asks_after),
        )
        step.claim = _new(Claim, fields)
        step.is_named, step.history = is_named, history
        step.is_marked_last = step.ends = ends is not None and _is_true(ends)

    def _acquire(self, steps: list[Step]) -> Mapping[str, StepRefusal]:
        """Make sure that the states of the steps' sequences are in memory; return refusals by sequence id."""
        return {}

    def _begin_or_answer(self, step: Step, refusals: Mapping[str, StepRefusal]) -> ResultRow | None:
        """Return the answer to a step that is not to run; otherwise prepare its sequence's state and return None."""
        sequence_id = step.sequence_id
        record = self._records.get(sequence_id) or SequenceRecord()
        running = 0
        if sequence_id in self._live_of:
            if (answer := self._running_twice(step)) is not None:
                return answer
            running = self._running(sequence_id, record)
        verdict = judge(step.claim, record, running, self._rules)
        if not isinstance(verdict, RunStep):
            return self._without_handler(step, verdict, record)
        if step.claim.asks:
            return error_answer(step.row.job_id, 500, CLIENT_ASKS)
        if verdict.begins:
            record = self._begin(step, record)
            running = 0
        elif self._cache.is_lost(sequence_id):
            return error_answer(step.row.job_id, *LOST)
        step.number, step.incarnation, step.token = record.last + running + 1, record.incarnation, record.token
        return None

    def _without_handler(self, step: Step, verdict: Repeat | Refuse, record: SequenceRecord) -> ResultRow:
        """Return the answer to a step that repeats another one or is refused."""
        job_id = step.row.job_id
        if isinstance(verdict, Refuse):
            return error_answer(job_id, *verdict.reason)
        kept = self._answers.get(step.sequence_id, {}).get(verdict.number)
        if kept is None:
            return error_answer(job_id, *APPLIED)
        return repeated_answer(step, kept, record)

    def _begin(self, step: Step, record: SequenceRecord) -> SequenceRecord:
        """Let a step begin an incarnation; return its record. The one before comes back if the step does not count."""
        sequence_id = step.sequence_id
        step.row.begins_sequence = True
        if sequence_id in self._live_of:
            self._cache.undo(sequence_id)
            self._end_live(sequence_id)
        if record.has_begun:
            self._earlier[sequence_id] = _Earlier(record, self._answers.pop(sequence_id, None))
            self._cache.set_aside(sequence_id)
            record = copy.copy(record)
        self._cache.drop(sequence_id)
        self._records[sequence_id] = record
        record.begin(step.claim.token or new_token(), "", "")
        return record

    def _running_twice(self, step: Step) -> ResultRow | None:
        """Return the answer to a request that still runs, if the step is one."""
        for other in self._live_of[step.sequence_id]:
            if other.request_id == step.request_id and step.claim.number is None:
                return error_answer(step.row.job_id, *RUNNING)
        return None

    def _running(self, sequence_id: str, record: SequenceRecord) -> int:
        """Return how many steps of the incarnation run that its record does not count yet."""
        live = self._live_of[sequence_id]
        return sum(step.number > record.last and step.incarnation == record.incarnation for step in live)

    def _release_closed(self, steps: list[Step]) -> None:
        """Release sequences that have ended and were not begun anew, before their steps are answered."""

    @contextmanager
    def rehearse(self, sequence_ids: Sequence[str]) -> Iterator[None]:
        """Let the handler set states of sequences that nobody has sent; they are dropped at the end."""
        self._cache.run(sequence_ids)
        try:
            yield
        finally:
            for sequence_id in sequence_ids:
                self._cache.drop(sequence_id)
            self._cache.run(self._live_of)

    def tell(self, row: Row, headers: Sequence[Sequence[str]]) -> tuple[Sequence[Sequence[str]], SequenceNews | None]:
        """Return the headers of a part of an answer, and what it tells the server of sequences.

        The first part names the incarnation, to the client as well; each part names the sequences that it ends.
        """
        news = news_of(headers, self._end_header) if headers else None
        step = self._live.get(row.job_id)
        if step is None or row.streaming:
            return headers, news
        step.headers, token = headers, step.token
        ended = () if news is None else news.ended
        return (*headers, (ANSWER_TOKEN, token)), _new(SequenceNews, ("", ended, token, "", 0, "", 0))

    def complete(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Record the steps that these answers complete; return the answers to send."""
        if self._cache.has_budget:
            answers[:] = map(self._unless_too_large, answers)
        done, failed = self._settle(answers, _LARGEST_KEPT)
        for step in failed:
            self._undo(step, done, answers)
        self._cache.keep(done)
        self._count(done)
        return self._with_rolled_back(answers)

    def _settle(self, answers: list[ResultRow], limit: int) -> tuple[dict[str, list[Step]], list[Step]]:
        """Take the steps that have their last answer out of those that run.

        Return those that were answered, by sequence, and those that failed. ``limit`` is that of `Step.add`.
        """
        done: dict[str, list[Step]] = {}
        failed: list[Step] = []
        live, live_of, keeps_all = self._live, self._live_of, self._compares_all
        for index, answer in enumerate(answers):
            step = live.get(answer.job_id)
            if step is None:
                continue
            sequence_id = step.sequence_id
            if answer.error is None:
                if keeps_all or step.is_named:
                    step.add(answer, limit)
                if answer.more:
                    continue
                step.index = index
                done.setdefault(sequence_id, []).append(step)
            else:
                failed.append(step)
            del live[answer.job_id]
            others = live_of[sequence_id]
            others.remove(step)
            if not others:
                del live_of[sequence_id]
        return done, failed

    def _unless_too_large(self, answer: ResultRow) -> ResultRow:
        """Return an answer, or an error in place of the last part of one whose state has no room in memory."""
        step = self._live.get(answer.job_id)
        excess = (
            None if step is None or answer.error is not None or answer.more else self._cache.excess(step.sequence_id)
        )
        return answer if excess is None else error_answer(answer.job_id, *TOO_LARGE, excess)

    def _undo(self, failed: Step, done: dict[str, list[Step]], answers: list[ResultRow]) -> None:
        """Undo what a step that has failed has changed, and with it what its sequence's other steps have.

        Other steps count all the same if it has changed no state and no client has said that they come after it.
        """
        sequence_id = failed.sequence_id
        record = self._records.get(sequence_id)
        if record is None or record.incarnation != failed.incarnation:
            return  # another step that has failed has undone this one, too
        others = [*self._live_of.get(sequence_id, ()), *done.get(sequence_id, ())]
        later = [each for each in others if each.number > failed.number]
        is_touched = self._cache.undo(sequence_id)
        if is_touched or not record.has_begun or any(each.claim.number is not None for each in later):
            for step in done.pop(sequence_id, ()):
                answers[step.index] = error_answer(step.row.job_id, *MOVED)
            self._end_live(sequence_id)
        elif failed.number > record.last:
            for step in later:
                step.number -= 1
        if not record.has_begun:
            self._go_back(sequence_id)

    def _go_back(self, sequence_id: str) -> None:
        """Drop an incarnation of which nothing was applied: the one before goes on, or the next step may begin one."""
        del self._records[sequence_id]
        self._cache.drop(sequence_id)
        earlier = self._earlier.pop(sequence_id, None)
        if earlier is not None:
            self._records[sequence_id] = earlier.record
            if earlier.answers is not None:
                self._answers[sequence_id] = earlier.answers
            self._cache.bring_back(sequence_id)

    def _count(self, done: Mapping[str, list[Step]]) -> None:
        """Record that steps were applied, and those of their sequences that still run: the states have their changes.

        Args:
            done: The steps that were answered, by sequence.
        """
        records, live_of, earlier = self._records, self._live_of, self._earlier
        for sequence_id, steps in done.items():
            record, running = records[sequence_id], live_of.get(sequence_id, ())
            if earlier and not record.has_begun and earlier.pop(sequence_id, None) is not None:
                self._cache.forget_aside(sequence_id)
            for step in sorted((*steps, *running), key=by_number) if running or len(steps) > 1 else steps:
                if not step.is_applied:
                    step.is_applied = True
                    if step.is_named:
                        record.apply(step.kept, self._most_kept, step.id_digest)
                        if record.forget_ids_beyond(self._most_ids):
                            self._warn_of_forgotten_ids(sequence_id)
                    else:
                        record.last = step.number
                if record.kept is not None:
                    self._keep(step, record.kept, interrupted=step in running)

    def _keep(self, step: Step, kept_steps: dict[int, KeptStep], *, interrupted: bool) -> None:
        """Keep the answer of a step that was applied, if its client can ask for it; forget the one that is too old."""
        number, answers = step.number, self._answers.get(step.sequence_id)
        if (old := number - self._most_kept) > 1:
            kept_steps.pop(old, None)
            if answers is not None:
                answers.pop(old, None)
        if step.is_named and number in kept_steps:
            kept = step.kept_fields(self._end_header, interrupted=interrupted)
            if len(kept.body) <= _LARGEST_KEPT:
                if answers is None:
                    answers = self._answers[step.sequence_id] = {}
                answers[number] = kept

    def _warn_of_forgotten_ids(self, sequence_id: str) -> None:
        if not self._warned_of_ids:
            self._warned_of_ids = True
            logger.warning(
                "Sequence %r has had more than %d requests without a number: the oldest ids are forgotten, so that a"
                " very late repetition of one of these would be applied again. Clients that number their steps"
                " (ts_request_step) have no such limit.",
                *(sequence_id, self._most_ids),
                extra={"sequence_id": sequence_id},
            )

    def complete_and_send(
        self, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], seconds: float, *, meanwhile: bool
    ) -> None:
        """Record the steps that these answers complete, and send the answers.

        Args:
            send: Sends them.
            seconds: How long the handler took for them.
            meanwhile: Whether a thread may commit and send while the caller goes on; `wait_for_commit` waits for that.
        """
        send(self.complete(answers))

    def undo_for_room(self, error: BaseException, sent: Sequence[InferRow]) -> bool:
        """Make room on a device that is full, and undo the steps that run; return whether they may begin again.

        Here they may not: nobody else has the states.
        """
        return False

    def wait_for_commit(self) -> None:
        """Wait for what `complete_and_send` has left to a thread; call this before anything else is sent."""

    def _end_live(self, sequence_id: str) -> None:
        """End the running steps of a sequence with an error, because they use a state that was rolled back."""
        for step in self._live_of.pop(sequence_id, ()):
            del self._live[step.row.job_id]
            if not step.row.done:
                step.row.done = True
                reason = (*UNKNOWN, BROKEN_OFF) if step.is_applied else MOVED
                self._rolled_back.append(error_answer(step.row.job_id, *reason))
        self._ended.discard(sequence_id)

    def _with_rolled_back(self, answers: list[ResultRow]) -> list[ResultRow]:
        if self._rolled_back:
            answers = [*answers, *self._rolled_back]
            self._rolled_back = []
        return answers

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""
        for sequence_id in (each.sequence_id for each in ended):
            self._end_live(sequence_id)
            self._records.pop(sequence_id, None)
            self._answers.pop(sequence_id, None)
            self._earlier.pop(sequence_id, None)
            self._cache.forget_aside(sequence_id)
            self._cache.drop(sequence_id)

    def forget_arriving(self, sequence_id: str) -> bool:
        """Drop what has come of a sequence that is not taken after all; return whether it is one of these."""
        return self._handover.forget(sequence_id)

    def hand_over(self, send: Callable[[list[Any]], None], most: int) -> Mapping[str, Callable[..., Any]]:
        """Return what answers the server's questions to give and to take sequences, by their kind.

        Args:
            send: Sends a message to the server.
            most: The most bytes that a sequence which is given may have.
        """
        self._handover.open(send, most)
        return self._handover.questions

    def add_state(self, sequence_id: str, piece: Buffer) -> None:
        """Take a piece of a sequence that another worker gives."""
        self._handover.add(sequence_id, piece)

    def listen(self, tell: Callable[[Sequence[str]], None], reports: StoreReports) -> None:
        """Have a thread call ``tell`` with the ids of sequences that other servers ask for, and report on the store."""

    # Between two batches: what a store needs.

    def rest(self) -> None:
        """Do the deferred work after answers have left: evict states from memory, and sometimes sweep the store."""
        self._cache.report(self._context)

    @property
    def store_update_due(self) -> bool:
        """Whether `update_store` has to run."""
        return False

    def update_store(self) -> None:
        """Write to the store which sequences have ended, and which other workers may take over."""

    def close(self) -> None:
        """Release the leases, so that other workers and servers can continue the sequences immediately."""


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1")
