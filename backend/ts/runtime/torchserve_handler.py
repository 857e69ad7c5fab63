"""The runtime of the TorchServe contract: ``handle(data, context)`` takes a list of rows, returns one result per row.

`TorchServeHandler` runs a batch in one call.
"""

import importlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final

from ts.connection.batch_claims import BatchClaims
from ts.connection.frontend_connection import FrontendConnection
from ts.jobs import device_loss
from ts.jobs.errors import RowFailure, device_failure
from ts.jobs.row import Row, RowReader
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    GIVE,
    NO_HISTORIES,
    STATUS_CANCELLED,
    EndedSequence,
    Histories,
    InferFrame,
    InferRow,
    Load,
    ResultRow,
    StepHistory,
)
from ts.runtime.batch import Batch
from ts.runtime.decoded_rows import read_row
from ts.runtime.result_bodies import error_row, failed_row
from ts.service import Service

logger = logging.getLogger(__name__)

#: The keys of a model's configuration file that describe its inputs and outputs.
DECLARATIONS: Final = ("inputs", "outputs", "decoupled")


class TorchServeHandler:
    """Runs every frame of rows as one batch, in one call of the handler; frames that join others share their batch."""

    def __init__(
        self,
        service: Service,
        connection: FrontendConnection,
        load: Load,
        claims: BatchClaims | None = None,
    ) -> None:
        self._service = service
        self._connection = connection
        self._decode_input = load["decode_input_request"]
        self._forms = load["forms"]
        self._max_response_size = load["max_response_size"]
        self._protocols = load["protocols"]
        #: Returns what reads rows of a protocol.
        self._reader_of = cache(self._find_reader)
        self._claims = claims
        self._frames: deque[InferFrame] = deque()
        #: What answers questions: messages ``[kind, number, …]`` that take their turn with batches.
        self.answers: dict[str, Callable[[], Any]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a batch is queued, or the sequence store has to be updated."""
        return bool(self._frames) or self.store_update_due

    def admit(self, frame: InferFrame) -> None:
        """Queue the rows of a frame as one batch, or as a part of the batch before if they join that."""
        self._frames.append(frame)

    def step(self) -> None:
        """Run the oldest batch, without rows that were cancelled in the queue; without a batch, update the store."""
        if self._frames:
            sent, histories = self._next_batch()
            rows = self.begin_rows(sent, histories)
            if not self.run_batch(rows, sent):
                undone = [each for each in sent if any(row.job_id == each.job_id for row in rows)]
                self.run_batch(self.begin_rows(undone, histories))
        else:
            self.update_store()

    @property
    def store_update_due(self) -> bool:
        """Whether the sequence store has to be updated, see `update_store`."""
        return self._service.steps is not None and self._service.steps.store_update_due

    def update_store(self) -> None:
        """Tell the store which sequences have ended here and which may move to other workers."""
        if self._service.steps is not None:
            self._service.steps.update_store()

    def _next_batch(self) -> tuple[Sequence[InferRow], Histories]:
        """Return the rows of the oldest frame and of those that join it, without what was taken back."""
        frame = self._frames.popleft()
        if frame.ahead is None:
            return frame.rows, frame.histories
        claimed: list[InferRow] = []
        known: dict[str, StepHistory] = {}
        ahead = frame.ahead
        while True:
            if self._claims is not None and self._claims.claim(ahead.pipe):
                claimed += frame.rows
                known |= frame.histories
            following = self._frames[0].ahead if self._frames else None
            if following is None or not following.joins:
                return claimed, known
            frame, ahead = self._frames.popleft(), following

    def run_batch(self, rows: list[Row], sent: Sequence[InferRow] = ()) -> bool:
        """Call the handler once for ``rows`` and answer all of them; return False if they were undone instead.

        That can happen to rows which can be read again: ``sent`` is what they were read from, perhaps among others.
        """
        if not rows:
            if device_loss.loss.reason:
                device_loss.end(self._connection)
            return True
        batch = self.new_batch(rows)
        results = batch.run(sent)
        if batch.is_undone:
            return False
        if results is not None:
            for row, value in zip(rows, results, strict=True):
                batch.answer(row, value, "false" if row.streaming else None)
        connection = self._connection
        is_followed = self._service.steps is not None and connection.is_plain
        batch.finish(meanwhile=is_followed and bool(self._frames or connection.has_more))
        return True

    def going_on(self, rows: list[Row], results: Sequence[Any]) -> list[Row]:
        """Return those of the rows that the next call of the handler has again; ``results`` are those of this one."""
        return []

    def new_batch(self, rows: list[Row]) -> Batch:
        """Return a batch of ``rows``, set up as the context's current batch."""
        return Batch(self._service, rows, self._connection, self._max_response_size)

    @property
    def declares(self) -> dict[str, Any]:
        """The inputs and outputs that the model's configuration file or its function declares, as in `Loaded`."""
        config = self._service.context.model_yaml_config
        declared = {key: config[key] for key in DECLARATIONS if config.get(key)}
        if self._service.steps is not None:
            context = self._service.context
            written = "state" if context.rebuild is None else "entries"
            declared["sequence_states"] = {"store": (context.cache_settings or {})["store"], "stepsWrite": written}
            if context.migrate is not None:
                declared["sequence_states"]["migrates"] = True
            if GIVE in self.answers:
                declared["sequence_states"]["handsOver"] = True
        return {**self._service.declared, **declared}

    def begin_rows(self, wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES) -> list[Row]:
        """Decode rows and begin their steps, for which a store may be asked; return the rows to run.

        Those that were cancelled, cannot be decoded, or were applied before are answered.
        """
        rows: list[Row] = []
        refused: list[ResultRow] = []
        cancelled, reader_of = self._connection.cancelled, self._reader_of
        for wire_row in wire_rows:
            if wire_row.job_id in cancelled:
                refused.append(error_row(wire_row.job_id, STATUS_CANCELLED, "cancelled"))
                continue
            try:
                rows.append(reader_of(wire_row.protocol)(wire_row))
            except Exception as error:
                if not isinstance(error, RowFailure):  # a defect, or memory ran out: fail this row only
                    about = {"request_id": wire_row.job_id}
                    logger.exception("Request %s cannot be read", wire_row.job_id, extra=about)
                    error = device_failure(error) or _unreadable(error)
                refused.append(failed_row(wire_row.job_id, error))
        if self._service.steps is not None and rows:
            rows, answered = self._service.steps.begin(rows, wire_rows, histories)
            refused += answered
        if refused:
            if self._service.steps is not None:  # the server takes answers in the order of the batches
                self._service.steps.wait_for_commit()
            if device_loss.loss.reason:  # states may have been restored
                device_loss.announce(self._connection)
            self._connection.send_results(refused, 0.0)
        return rows

    def read_row(self, wire_row: InferRow) -> Row:
        """Return a row decoded for the handler. Raises Failure: the row cannot be parsed."""
        return self._reader_of(wire_row.protocol)(wire_row)

    def _find_reader(self, protocol: str | None) -> RowReader:
        if protocol is None:
            return partial(read_row, decode=self._decode_input, forms=self._forms)
        name = self._protocols.get(protocol)
        if name is None:
            known = ", ".join(self._protocols) or "none"
            raise RowFailure(501, f"The protocol {protocol!r} cannot be read for a handler; these can be: {known}.")
        module = importlib.import_module(name)
        reader: RowReader = module.row_reader(self._service.context, self.declares, self._service.envelope)
        return reader

    def drop_cancelled(self, rows: list[Row]) -> list[Row]:
        """Answer the cancelled rows; return the others."""
        cancelled = self._connection.cancelled
        if not cancelled:
            return rows
        dropped = [row.job_id for row in rows if row.job_id in cancelled]
        if dropped:
            answers: list[ResultRow] = [error_row(job_id, STATUS_CANCELLED, "cancelled") for job_id in dropped]
            if self._service.steps is not None:
                answers = self._service.steps.complete(answers)
            self._connection.send_results(answers, 0.0)
            self.notify_cancelled(dropped)
        cancelled.difference_update(dropped)
        # Further cancellations may have arrived by now; their rows have not been answered.
        return [row for row in rows if row.job_id not in dropped]

    def notify_cancelled(self, job_ids: list[str]) -> None:
        """Call the handler's ``on_cancel``, if it has one, for rows that ended after the handler had begun them."""
        hook = self._service.on_cancel
        if hook is not None:
            try:
                hook(job_ids)
            except Exception as error:
                device_loss.note_loss(error)
                logger.exception("on_cancel(%r) failed", job_ids)

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:
        """Call the handler's ``on_sequence_end``, if it has one, and log its exceptions; end the sequences' steps."""
        ended = list(ended)
        if (steps := self._service.steps) is not None:
            steps.wait_for_commit()  # the hook must not see states that will be rolled back
            ended = [each for each in ended if not steps.forget_arriving(each.sequence_id)]
        hook = self._service.on_sequence_end
        if hook is not None:
            for each in ended:
                try:
                    hook(each.sequence_id, each.reason)
                except Exception as error:
                    device_loss.note_loss(error)
                    logger.exception("on_sequence_end(%r, %r) failed", each.sequence_id, each.reason)
        if steps is not None:
            steps.end(ended)

    def open_handover(self, load: Load) -> None:
        """Give sequences to other workers, and take theirs, unless a store has them."""
        if self._service.steps is not None and load["cache"] is not None:
            send = partial(self._connection.send, large=True)
            self.answers |= self._service.steps.hand_over(send, load["cache"]["most_state"])

    def add_state(self, sequence_id: str, piece: Buffer) -> None:
        """Take a piece of a sequence that another worker gives."""
        if self._service.steps is not None:
            self._service.steps.add_state(sequence_id, piece)

    def close(self) -> None:
        """Close the store of the model's sequences before the worker stops."""
        if self._service.steps is not None:
            self._service.steps.close()


def _unreadable(error: Exception) -> RowFailure:
    """Return why a request was not read, for the client: there is a defect, or a package lacks that few models need."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return RowFailure(
            501, f"Such requests need the package {package}, which the server lacks: pip install {package}"
        )
    return RowFailure(500, "The request cannot be read; the server's log says why.")
