"""The worker's main loop for models whose code is asynchronous: every job is a task of one event loop, without threads.

The loop watches the connection. Each job that arrives becomes a task immediately, even while others run. Answers leave
in the order in which the tasks give them. When the frontend cancels a job, because its client left, the loop cancels
the job's task. The runtime (`AsyncRuntime`) runs a single job.

Writes to the connection block the loop on purpose: the frontend stops reading only while all clients that receive this
worker's responses are slow, and then the worker has to slow down too.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from ts.connection.frontend_connection import FrontendConnection, FrontendGone
from ts.contracts.async_calls.async_runtime import NO_INPUTS, AsyncRuntime, FurtherInputs
from ts.jobs.errors import HandlerFailed
from ts.protocol import messages
from ts.protocol.log_records import running
from ts.protocol.messages import EndedSequence, Histories, InferRow, Load
from ts.protocol.request_names import name_among
from ts.runtime.result_bodies import error_row
from ts.runtime.worker_observer import WorkerObserver, observers_of

logger = logging.getLogger(__name__)


Loading: TypeAlias = tuple[Callable[[], None], Mapping[str, Any]]


def load(
    load: Load,
    connection: FrontendConnection,
    load_runtime: Callable[[Load, FrontendConnection, asyncio.Runner], AsyncRuntime],
) -> Loading:
    """Load a model in the event loop that serves it; return what serves it, and its declarations.

    Raises what ``load_runtime`` raises.
    """
    runner = asyncio.Runner()
    runtime = load_runtime(load, connection, runner)
    observers = observers_of(load) if runtime.is_observed_by_job else ()
    return partial(run, connection, runtime, runner, observers), runtime.declares


def run(
    connection: FrontendConnection,
    runtime: AsyncRuntime,
    runner: asyncio.Runner,
    observers: Sequence[WorkerObserver] = (),
) -> None:
    """Run jobs in the loop of ``runner``, started through ``observers``, until the frontend stops the worker.

    Raises FrameError, ValueError: the frontend sent bytes that are no frame, or a message of an unknown kind.
    """
    with runner:
        runner.run(_Jobs(connection, runtime, runner.get_loop(), observers).serve())


class _Jobs:
    def __init__(
        self,
        connection: FrontendConnection,
        runtime: AsyncRuntime,
        loop: asyncio.AbstractEventLoop,
        observers: Sequence[WorkerObserver],
    ) -> None:
        self._connection = connection
        self._runtime = runtime
        self._observers = observers
        self._loop = loop
        self._stopping = False
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._inputs: dict[str, FurtherInputs] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._cancelling: set[str] = set()  # jobs whose task was cancelled and has not ended yet

    async def serve(self) -> None:
        self._loop.add_reader(self._connection, self._take_in)
        try:
            await self._stopped
        finally:
            self._loop.remove_reader(self._connection)
        await self._runtime.close()

    def _take_in(self) -> None:
        try:
            while (message := self._connection.receive(wait=False)) is not None:
                self._handle(message)
            self._cancel()
            self._end_if_stopping()
        except FrontendGone:
            self._end(None)
        except Exception as error:
            self._end(error)

    def _handle(self, message: list[Any]) -> None:
        match message:
            case [messages.INFER, *fields]:
                frame = messages.decode_infer(*fields)
                for wire_row in frame.rows:
                    self._start(wire_row, frame.histories)
            case [messages.INPUT, job_id, more, body]:
                if job_id in self._inputs:  # the job may have ended while its input was on the way
                    self._inputs[job_id].put(body, more=more)
            case [messages.HEALTH, number]:
                self._probe(self._answer_probe(number))
            case [messages.EXPOSE, number]:
                self._probe(self._expose(number))
            case [messages.END_SEQUENCE, ended]:
                self._runtime.end_sequences(map(EndedSequence._make, ended))
            case [messages.STATE, sequence_id, piece]:
                self._runtime.add_state(sequence_id, piece)
            case [messages.CALLED, number, *answer]:
                self._runtime.called(number, answer)
            case [kind, number, *fields] if kind in self._runtime.answers:
                self._connection.send([messages.ANSWER, number, self._runtime.answers[kind](*fields)])
            case [messages.STOP]:
                self._stopping = True
            case [kind, *_]:
                raise ValueError(f"the frontend sent a message of unknown kind {kind!r}")

    def _start(self, wire_row: InferRow, histories: Histories) -> None:
        job_id = wire_row.job_id
        # The task copies the context in which it is created, so its log records keep this request's id.
        previous = running.set(lambda: ((name_among(wire_row.headers) or job_id, ""),))
        inputs = NO_INPUTS
        if wire_row.more_input:
            inputs = self._inputs[job_id] = FurtherInputs()
        start = partial(self._loop.create_task, self._runtime.run_job(wire_row, inputs, histories))
        for observer in self._observers:
            start = partial(observer.start_task, wire_row, start)
        task = self._tasks[job_id] = start()
        task.add_done_callback(lambda task: self._ended(job_id, task))
        running.reset(previous)

    def _cancel(self) -> None:
        """Cancel the tasks of cancelled jobs; each task only once, because it may need time to clean up."""
        cancelled = self._connection.cancelled
        for job_id in cancelled - self._cancelling:
            task = self._tasks.get(job_id)
            if task is None:  # the cancellation crossed the job's last answer on the way
                cancelled.discard(job_id)
            else:
                self._cancelling.add(job_id)
                self._runtime.cancel_job(job_id, task)

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job_id]
        self._inputs.pop(job_id, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._end(error)
        elif task.cancelled() and job_id in self._cancelling:
            self._connection.send_results([error_row(job_id, messages.STATUS_CANCELLED, "cancelled")], 0.0)
        elif (task.cancelled() or error is not None) and not self._stopped.done():
            # The model's code cancelled the task, or raised what is no Exception, such as a panic of Rust code.
            failure = HandlerFailed("Prediction failed")
            logger.warning("The task of job %s ended without an answer", job_id, exc_info=error)
            self._connection.send_results([error_row(job_id, failure.status, failure.message)], 0.0)
        self._cancelling.discard(job_id)
        self._connection.cancelled.discard(job_id)
        self._end_if_stopping()

    def _probe(self, answering: Coroutine[Any, Any, None]) -> None:
        probe = self._loop.create_task(answering)
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _answer_probe(self, number: int) -> None:
        try:
            healthy = await self._runtime.is_healthy()
        except Exception:
            logger.exception("The model's health check failed")
            healthy = False
        self._connection.send([messages.ANSWER, number, healthy])

    async def _expose(self, number: int) -> None:
        text = None
        try:
            text = await self._runtime.expose_metrics()
        except Exception:  # the model's own code may raise anything
            logger.exception("The model's metrics cannot be collected")
        self._connection.send([messages.ANSWER, number, text])

    def _end_if_stopping(self) -> None:
        if self._stopping and not self._tasks:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._stopped.done():
            if error is None:
                self._stopped.set_result(None)
            else:
                self._stopped.set_exception(error)
