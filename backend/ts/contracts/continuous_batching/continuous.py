"""Continuous batching of TorchServe handlers: one call of the handler per step, with all live rows.

A row is live from its arrival to its last part; new rows join, and cancelled rows leave, between two steps. After a
step ``context.stopping_criteria`` holds a callable for each row (a list, or a dict by row index or request id), which
takes the row's result. It returns True for the last part, False for a part that others follow, None for a whole
response. A row without a callable ends with this step. A row that goes on and has the result None sends nothing in this
step. ``docs/handlers.md`` has an example.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ts.connection.batch_claims import BatchClaims
from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.jobs import device_loss
from ts.jobs.errors import HandlerFailed
from ts.jobs.row import Row
from ts.process.worker import load_handler
from ts.protocol.messages import InferFrame, Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

logger = logging.getLogger(__name__)


class ContinuousHandler(TorchServeHandler):
    """Runs a handler step by step over the rows that are live."""

    def __init__(
        self, service: Service, connection: FrontendConnection, load: Load, claims: BatchClaims | None = None
    ) -> None:
        super().__init__(service, connection, load, claims)
        self._live: list[Row] = []
        self._describe: list[Row] = []
        self._known_cancelled: set[str] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._live or self._describe) or self.store_update_due

    def admit(self, frame: InferFrame) -> None:
        # Drop cancelled rows, and roll back their sequences, before another request of the same sequence joins: the new
        # request must not use the state that the cancelled one left.
        self._live = self.drop_cancelled(self._live)
        for row in self.begin_rows(frame.rows, frame.histories):
            is_describe = row.get_request_property("describe") == "True"
            (self._describe if is_describe else self._live).append(row)

    def step(self) -> None:
        """Run one step with all live rows; a request to describe the model runs in a call of its own."""
        if self._describe:
            self.run_batch([self._describe.pop(0)])
            return
        if not self._live:
            self.update_store()
            return
        live = self._without_withdrawn(self.drop_cancelled(self._live))
        # The jobs of the cancellations that the step before knew of have arrived and been answered since.
        self._connection.cancelled.difference_update(self._known_cancelled)
        self._known_cancelled = set(self._connection.cancelled)
        self._live = []
        if live:
            self._live = self._without_withdrawn(self._run(live))
            for row in self._live:
                row.data = {}
                row.reset_response()

    def going_on(self, rows: list[Row], results: Sequence[Any]) -> list[Row]:
        criteria = self._service.context.stopping_criteria
        given = enumerate(zip(rows, results, strict=True))
        return [row for index, (row, value) in given if _stream_next(criteria, index, row, value) == "true"]

    def _without_withdrawn(self, rows: list[Row]) -> list[Row]:
        """Return the rows whose sequence was not rolled back; notify the handler of the others' end."""
        withdrawn = [row.job_id for row in rows if row.done]
        if not withdrawn:
            return rows
        self.notify_cancelled(withdrawn)
        return [row for row in rows if not row.done]

    def _run(self, live: list[Row]) -> list[Row]:
        batch = self.new_batch(live)
        results = batch.run()
        if results is not None:
            criteria = self._service.context.stopping_criteria
            for index, (row, value) in enumerate(zip(live, results, strict=True)):
                try:
                    stream_next = _stream_next(criteria, index, row, value)
                except Exception as error:
                    device_loss.note_loss(error)
                    about, text = {"request_id": row.job_id}, "The stopping criterion of request %s failed."
                    logger.warning(text, row.job_id, exc_info=True, extra=about)
                    batch.fail(row, HandlerFailed("Prediction failed"))
                else:
                    if value is not None or stream_next != "true" or row.error is not None:
                        batch.answer(row, value, stream_next)
        unfinished = [row for row in live if not row.done]
        batch.finish()
        return unfinished


def _stream_next(criteria: Any, index: int, row: Row, value: Any) -> str | None:
    """Return the value of the response header ``ts_stream_next`` for this step; None for a response of one part."""
    stop = None
    if criteria and not row.done:
        if isinstance(criteria, Mapping):
            criterion = criteria.get(index, criteria.get(row.job_id))
        else:
            criterion = criteria[index] if index < len(criteria) else None
        stop = None if criterion is None else criterion(value)
    if stop is None:
        return "false" if row.streaming else None
    return "false" if stop else "true"


def load(
    load: Load, connection: FrontendConnection, heartbeat: Heartbeat
) -> tuple[Callable[[], None], Mapping[str, Any]]:
    """Load a handler that is called step by step, see `ts.process.worker.load_model`."""
    return load_handler(load, connection, heartbeat, ContinuousHandler)
