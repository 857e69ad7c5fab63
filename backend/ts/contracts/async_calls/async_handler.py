"""The runtime of asynchronous TorchServe handlers (``asyncCommunication: true``): ``async def handle(data, context)``.

Every request becomes a separate call with one row and a copy of the context, as soon as it arrives, so a handler can
feed an engine that batches by itself. A call whose client leaves is cancelled where the handler awaits.

With ``sequenceBatching`` the calls of one sequence run one after another, those of different sequences at once. What a
sequence store does for a call (reading a state, a commit) happens in the event loop, which waits for it.
"""

import asyncio
import copy
import inspect
import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.context import RequestProcessor
from ts.contracts.async_calls import event_loop
from ts.contracts.async_calls.async_runtime import AsyncRuntime, FurtherInputs, is_cancelled
from ts.contracts.async_calls.event_loop import Loading
from ts.jobs.errors import HandlerFailed
from ts.jobs.row import Row
from ts.jobs.sequence_steps import StoreReports
from ts.protocol.frames import Buffer
from ts.protocol.log_records import running
from ts.protocol.messages import CALL_DEPTH, NO_HISTORIES, STATUS_CANCELLED, EndedSequence, Histories, InferRow, Load
from ts.protocol.request_names import header_among
from ts.runtime.batch import Batch, failure_of
from ts.runtime.loader import load_service, prepare
from ts.runtime.result_bodies import error_row
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

logger = logging.getLogger(__name__)

#: Seconds in which the store hears of the sequences that this worker has let go.
_STORE_DELAY: Final = 0.1


class ModelCalls(Protocol):
    """The calls of other models that a handler makes."""

    def open(self, connection: FrontendConnection, max_size: int) -> None:
        """Make calls through a connection; ``max_size`` is that of a body in bytes."""

    def begin(self, job_id: str, *, is_called: bool) -> None:
        """Let the calls of the running task belong to a job."""

    def answered(self, number: int, answer: list[Any]) -> None:
        """Take what came of a call, see `ts.protocol.messages.CALLED`."""


class AsyncCall(Batch):
    """One call of an asynchronous handler: a batch of one row."""

    def __init__(self, service: Service, row: Row, connection: FrontendConnection, max_response_size: int) -> None:
        own = copy.copy(service)
        own.context = copy.copy(service.context)
        # Calls share the collected metrics, which leave with the next answer of any call; the request ids are per call.
        own.context.metrics_in_use = copy.copy(service.context.metrics)
        own.context.stopping_criteria = None
        super().__init__(own, [row], connection, max_response_size)
        self._look = lambda: None  # the event loop reads as soon as the handler awaits

    async def run_to_end(self) -> None:
        """Call the handler and answer the row. Raises asyncio.CancelledError: the task was cancelled before that."""
        started = time.perf_counter()
        running.set(self._ids)
        (row,) = self.rows
        try:
            answer = self._service.entry_point([row.data], self._service.context)
            (result,) = self.checked(await answer if inspect.isawaitable(answer) else answer)
            self.answer(row, result, "false" if row.streaming else None)
        except asyncio.CancelledError:
            if is_cancelled() and not row.done:
                raise
            logger.warning("The handler was cancelled by its own code.", exc_info=True)
            self.fail(row, HandlerFailed("Prediction failed"))
        except Exception as error:
            self.fail_all(failure_of(error))
        self._seconds = time.perf_counter() - started
        self.flush()


class AsyncHandler(AsyncRuntime):
    """Runs every request as a call of its own; see `ts.contracts.async_calls.async_runtime`."""

    is_observed_by_job = False

    def __init__(
        self,
        service: Service,
        connection: FrontendConnection,
        handler: TorchServeHandler,
        max_response_size: int,
        calls: ModelCalls | None = None,
    ) -> None:
        super().__init__(handler.declares)
        self.answers = handler.answers
        self._handler = handler
        self._service = service
        self._connection = connection
        self._max_response_size = max_response_size
        #: What follows the handler's calls of other models, if it may make some.
        self._calls = calls
        #: By sequence; its calls take turns.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._store_update: asyncio.TimerHandle | None = None

    async def run_job(self, wire_row: InferRow, inputs: FurtherInputs, histories: Histories = NO_HISTORIES) -> None:
        if self._calls is not None:
            self._calls.begin(wire_row.job_id, is_called=header_among(wire_row.headers, CALL_DEPTH) is not None)
        if self._service.steps is None:
            for row in self._handler.begin_rows([wire_row]):
                await self._call(row)
            return
        headers = RequestProcessor(None, wire_row.headers, ()).get_headers_by_name()
        turn = asyncio.Lock()
        if sequence_id := headers.get(self._service.context.header_key_sequence_id):
            turn = self._turns.setdefault(sequence_id, turn)
        async with turn:
            try:
                for row in self._handler.begin_rows([wire_row], histories):
                    await self._call(row)
            except BaseException:
                self._undo(wire_row.job_id)
                raise
            finally:
                self._update_store_soon()

    def called(self, number: int, answer: list[Any]) -> None:
        if self._calls is None:
            super().called(number, answer)
        else:
            self._calls.answered(number, answer)

    def add_state(self, sequence_id: str, piece: Buffer) -> None:
        self._handler.add_state(sequence_id, piece)

    async def _call(self, row: Row) -> None:
        await AsyncCall(self._service, row, self._connection, self._max_response_size).run_to_end()

    def _undo(self, job_id: str) -> None:
        """Undo the step of a job that the main loop answers, since its call was cancelled; answer what ends with it."""
        assert self._service.steps is not None
        ended = self._service.steps.complete([error_row(job_id, STATUS_CANCELLED, "cancelled")])
        if others := [each for each in ended if each.job_id != job_id]:
            self._connection.send_results(others, 0.0)

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:
        self._handler.end_sequences(ended)
        self._update_store_soon()

    def _update_store_soon(self) -> None:
        if self._store_update is None and self._handler.store_update_due:
            self._store_update = asyncio.get_running_loop().call_later(_STORE_DELAY, self._update_store)

    def _update_store(self) -> None:
        self._store_update = None
        self._handler.update_store()

    async def close(self) -> None:
        self._handler.close()


def load(load: Load, connection: FrontendConnection, heartbeat: Heartbeat) -> Loading:
    """Load a model with an asynchronous handler, whose ``initialize`` may be a coroutine of the loop that serves it."""
    return event_loop.load(load, connection, partial(_load, heartbeat))


def _load(heartbeat: Heartbeat, load: Load, connection: FrontendConnection, runner: asyncio.Runner) -> AsyncHandler:
    wait_for = runner.get_loop().run_until_complete
    service = load_service(load, wait_for=wait_for)
    handler = TorchServeHandler(service, connection, load)
    prepare(service, handler, load, wait_for)
    if service.steps is not None:
        service.steps.listen(heartbeat.tell_wanted, StoreReports(heartbeat.tell_evictions, heartbeat.tell_store_size))
        handler.open_handover(load)
    calls: ModelCalls | None = service.handler.calls if load["max_call_size"] else None
    if calls is not None:
        calls.open(connection, load["max_call_size"])
    return AsyncHandler(service, connection, handler, load["max_response_size"], calls)
