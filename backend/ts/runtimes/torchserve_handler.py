"""How the TorchServe contract is run: ``handle(data, context)`` with a list of rows, one result per row.

`TorchServeHandler` runs a batch in one call. The step loop of continuous batching is `ts.runtimes.continuous`, handlers
that are coroutines are `ts.runtimes.async_handler`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from ts.connection import Connection
from ts.context import Context
from ts.protocol.messages import NO_HISTORIES, STATUS_CANCELLED, EndedSequence, Histories, InferRow, ResultRow
from ts.runtimes.batch import Batch
from ts.runtimes.errors import Failure
from ts.runtimes.responses import error_row
from ts.runtimes.rows import Row, RowReader
from ts.service import Service

if TYPE_CHECKING:
    from ts.runtimes.open_inference_rows import OpenInferenceRows

logger = logging.getLogger(__name__)

#: What a model may say in its configuration file about its inputs and outputs.
DECLARATIONS: Final = ("inputs", "outputs", "decoupled")


class Runtime(Protocol):
    """What the worker's main loop drives."""

    @property
    def is_busy(self) -> bool:
        """Whether there is something to do in a step."""

    def admit(self, wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES) -> None:
        """Take the rows of one frame, with the histories of some; they run in the next steps."""

    def step(self) -> None:
        """Call the model once and send what it answers."""

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:
        """Tell the model that sequences are over."""

    def close(self) -> None:
        """The worker stops: nothing is asked any more."""


class TorchServeHandler:
    """Runs every frame of rows as one batch, in one call of the handler.

    Args:
        service: The loaded model.
        connection: Where rows come from and answers go.
        decode_input: Whether JSON and text bodies are decoded for the handler.
        max_response_size: The largest body in bytes that one row may have.
    """

    def __init__(self, service: Service, connection: Connection, *, decode_input: bool, max_response_size: int) -> None:
        self._service = service
        self._connection = connection
        self._reader = RowReader(decode=decode_input)
        self._max_response_size = max_response_size
        self._open_inference_rows: OpenInferenceRows | None = None
        self._batches: deque[tuple[Sequence[InferRow], Histories]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether a batch waits, or a store is to be told something."""
        return bool(self._batches) or self.has_news

    def admit(self, wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES) -> None:
        """Queue the rows of one frame as one batch."""
        self._batches.append((wire_rows, histories))

    def step(self) -> None:
        """Run the oldest batch; rows that were cancelled while it waited are answered without running."""
        if self._batches:
            self.run_batch(self.read_rows(*self._batches.popleft()))
        else:
            self.tell_news()

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell a store, once there is nothing else to do."""
        return self._service.steps is not None and self._service.steps.has_news

    def tell_news(self) -> None:
        """Tell the store which sequences others may have."""
        if self._service.steps is not None:
            self._service.steps.tell()

    def run_batch(self, rows: list[Row]) -> None:
        """Call the handler once for ``rows`` and answer all of them."""
        if not rows:
            return
        batch = self.new_batch(rows)
        results = batch.run()
        if results is not None:
            for row, value in zip(rows, results, strict=True):
                batch.answer(row, value, "false" if row.streaming else None)
        batch.finish()

    def new_batch(self, rows: list[Row]) -> Batch:
        """Make ``rows`` the batch that the handler is called for next."""
        return Batch(self._service, rows, self._connection, self._max_response_size)

    @property
    def declares(self) -> dict[str, Any]:
        """What the model's configuration file says about its inputs and outputs, as `Loaded` has it."""
        config = self._service.context.model_yaml_config
        return {key: config[key] for key in DECLARATIONS if config.get(key)}

    @property
    def context(self) -> Context:
        """The model's context."""
        return self._service.context

    def read_rows(self, wire_rows: Sequence[InferRow], histories: Histories = NO_HISTORIES) -> list[Row]:
        """Return the rows that are to run; the others are answered at once.

        Those are the cancelled ones, those that cannot be parsed, and steps of sequences that were applied before.
        """
        rows: list[Row] = []
        refused: list[ResultRow] = []
        cancelled = self._connection.cancelled
        for wire_row in wire_rows:
            if wire_row[0] in cancelled:
                refused.append(error_row(wire_row[0], STATUS_CANCELLED, "cancelled"))
                continue
            try:
                rows.append(self._reader.read(wire_row) if wire_row[4] is None else self._read_open_inference(wire_row))
            except Failure as failure:
                refused.append(error_row(wire_row[0], failure.status, failure.message))
            except Exception:
                # A defect, or memory that ran out: the row is lost, its batch-mates and the worker are not.
                logger.exception("Request %s cannot be read", wire_row[0], extra={"request_id": wire_row[0]})
                refused.append(error_row(wire_row[0], 500, "The request cannot be read; the server's log says why."))
        if self._service.steps is not None and rows:
            rows, answered = self._service.steps.begin(rows, wire_rows, histories)
            refused += answered
        if refused:
            self._connection.send_results(refused, 0.0)
        return rows

    def _read_open_inference(self, wire_row: InferRow) -> Row:
        if self._open_inference_rows is None:
            from ts.runtimes.open_inference_rows import OpenInferenceRows

            self._open_inference_rows = OpenInferenceRows(self.context, self.declares, self._service.envelope)
        return self._open_inference_rows.read(wire_row)

    def drop_cancelled(self, rows: list[Row]) -> list[Row]:
        """Return the rows that somebody waits for; the others are answered."""
        cancelled = self._connection.cancelled
        if not cancelled:
            return rows
        dropped = [row.job_id for row in rows if row.job_id in cancelled]
        if dropped:
            answers: list[ResultRow] = [error_row(job_id, STATUS_CANCELLED, "cancelled") for job_id in dropped]
            if self._service.steps is not None:
                answers = self._service.steps.settle(answers)
            self._connection.send_results(answers, 0.0)
            self.tell_cancelled(dropped)
        remaining = [row for row in rows if row.job_id not in cancelled]
        cancelled.difference_update(dropped)
        return remaining

    def forget_cancelled(self) -> None:
        """Nothing waits to be read or run but what somebody waits for: all that was cancelled has been answered."""
        self._connection.cancelled.clear()

    def tell_cancelled(self, job_ids: list[str]) -> None:
        """Tell the handler, if it wants to know, that rows which it had begun are over."""
        hook = self._service.on_cancel
        if hook is not None:
            try:
                hook(job_ids)
            except Exception:
                logger.exception("on_cancel(%r) failed", job_ids)

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:
        """Call the handler's ``on_sequence_end``, if it has one; what it raises is logged and nothing more."""
        ended = list(ended)
        hook = self._service.on_sequence_end
        if hook is not None:
            for sequence_id, reason, _ in ended:
                try:
                    hook(sequence_id, reason)
                except Exception:
                    logger.exception("on_sequence_end(%r, %r) failed", sequence_id, reason)
        if self._service.steps is not None:
            self._service.steps.end(ended)

    def close(self) -> None:
        """Let go of what the model's sequences are kept in."""
        if self._service.steps is not None:
            self._service.steps.close()
