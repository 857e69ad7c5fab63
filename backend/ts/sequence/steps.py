"""Steps of sequences: which requests of a sequence run, and which get an answer at once instead.

A step is a request of a sequence, identified by its **request id**: the header ``ts_request_id`` if the client sends
one, otherwise the server's id of the job (which stays the same when the server sends the job again). The runtime

* passes each batch's rows to `Steps.begin`, which returns the rows to run, and the answers to the other rows;
* passes the answers to `Steps.complete` before they leave.

`Steps` keeps the states of sequences in memory only; `ts.sequence.stored_steps` keeps them in a store, too.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ts.context import Context
from ts.protocol.messages import NO_HISTORIES, REQUEST_ID, EndedSequence, Histories, History, InferRow, ResultRow
from ts.runtimes.decoded_rows import Row
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.step import BROKEN_OFF, LOST, MOVED, NEW, ROLLED_BACK, UNKNOWN, Step, StepRefusal, error_answer

logger = logging.getLogger(__name__)


class Steps:
    """The steps of one worker's sequences.

    Args:
        context: The model's context, with the names of the sequence headers.
        cache: The handler's states in memory.
    """

    def __init__(self, context: Context, cache: SequenceCache) -> None:
        self._context = context
        self._cache = cache
        self._live: dict[str, Step] = {}  # by job id: the steps that have begun and lack their last answer
        self._live_of: dict[str, list[Step]] = {}  # the same steps by sequence id
        self._rolled_back: list[ResultRow] = []  # unsent error answers of steps whose sequence was rolled back
        self._ended: set[str] = set()  # sequences that end as soon as none of their steps runs
        cache.run(self._live_of)

    def begin(
        self, rows: list[Row], wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES
    ) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows to run, and the answers to the other rows.

        Args:
            rows: The decoded requests.
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
        refusals = self._refusals(steps)
        answers: list[ResultRow] = []
        for step in steps:
            answer = self._answer_at_once(step, refusals, wire_rows)
            if answer is None:
                self._live[step.row.job_id] = step
                self._live_of.setdefault(step.sequence_id, []).append(step)
                running.append(step.row)
            else:
                answers.append(answer)
        if answers:
            self._release_closed(steps)
        if self._rolled_back:  # a start marker ends the steps of its sequence that run, also those of this batch
            running = [row for row in running if not row.done]
        return running, self._with_rolled_back(answers)

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
            starts is not None and _is_true(starts),
            ends is not None and _is_true(ends),
            History(*histories[row.job_id]) if row.job_id in histories else NEW,
        )

    def _refusals(self, steps: list[Step]) -> Mapping[str, StepRefusal]:
        """Make sure that the states of the steps' sequences are in memory; return refusals by sequence id."""
        return {}

    def _answer_at_once(
        self, step: Step, refusals: Mapping[str, StepRefusal], wire_rows: Sequence[InferRow]
    ) -> ResultRow | None:
        """Return the answer to a step that is not to run; otherwise prepare its sequence's state and return None."""
        if step.starts:
            self._cache.drop(step.sequence_id)
        elif self._cache.has_lost(step.sequence_id):
            text = (
                f"The state of sequence {step.sequence_id!r} had to make room for others. Please start a new sequence."
            )
            return error_answer(step.row.job_id, *LOST, text)
        return None

    def _release_closed(self, steps: list[Step]) -> None:
        """Release sequences that have ended and were not begun anew, before their steps are answered."""

    def complete(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Record the steps that these answers complete; return the answers to send."""
        for answer in answers:
            if not answer[1] and (step := self._live.get(answer[0])) is not None:
                self._leave(step)
        return self._with_rolled_back(answers)

    def complete_and_send(
        self, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], seconds: float, *, meanwhile: bool
    ) -> None:
        """Record the steps that these answers complete, and send the answers.

        Args:
            send: Sends them.
            seconds: How long the handler took for them.
            meanwhile: Whether a thread may commit and send while the caller goes on; `finish_commit` waits for that.
        """
        send(self.complete(answers))

    def finish_commit(self) -> None:
        """Wait for what `complete_and_send` has left to a thread; call this before anything else is sent."""

    def _leave(self, step: Step) -> None:
        """Remove a step that has its last answer from the running steps."""
        del self._live[step.row.job_id]
        of_its_sequence = self._live_of[step.sequence_id]
        if len(of_its_sequence) == 1:
            del self._live_of[step.sequence_id]
        else:
            of_its_sequence.remove(step)

    def _end_live(self, sequence_id: str) -> None:
        """End the running steps of a sequence with an error, because they use a state that was rolled back."""
        for step in self._live_of.pop(sequence_id, ()):
            del self._live[step.row.job_id]
            if not step.row.done:
                step.row.done = True
                reason = (*MOVED, ROLLED_BACK) if step.slot is None else (*UNKNOWN, BROKEN_OFF)
                self._rolled_back.append(error_answer(step.row.job_id, *reason))
        self._ended.discard(sequence_id)

    def _with_rolled_back(self, answers: list[ResultRow]) -> list[ResultRow]:
        if self._rolled_back:
            answers = [*answers, *self._rolled_back]
            self._rolled_back = []
        return answers

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""
        for sequence_id, _, _ in ended:
            self._end_live(sequence_id)
            self._cache.drop(sequence_id)

    # Between two batches: what a store needs.

    def rest(self) -> None:
        """Do the deferred work after answers have left: evict states from memory, and sometimes sweep the store."""

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
