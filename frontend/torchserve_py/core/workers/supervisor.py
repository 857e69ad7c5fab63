"""Keeps one place of a pool filled: starts its worker, and replaces it when it dies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeAlias

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.workers.lifecycle import PLACE_TRANSITIONS, PlaceEvent, PlaceState, WorkerState
from torchserve_py.core.workers.restarts import Restarts
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.worker import Worker, WorkerEvents
from torchserve_py.net.running_time import running_time

logger = logging.getLogger(__name__)

#: How long a worker that is killed may take to go (seconds).
_KILL_LIMIT = 20.0

#: Waits until a worker may start; returns `Worker.gpu_room`. Raises WorkerFailed: it may not.
TakeRoom: TypeAlias = Callable[[Worker], Coroutine[Any, Any, int | None]]


class Supervisor:
    """One place of a pool; its id is that of every worker that fills it in turn.

    When a worker is started again is for `restarts` to say: for ``max_retry`` seconds of failing after growing delays,
    and then, as a place that was given up, now and then for as long as it is wanted.
    """

    def __init__(
        self, worker_id: str, make_worker: Callable[[], Worker], events: WorkerEvents, max_retry: float
    ) -> None:
        self.id = worker_id
        self.started_at = datetime.now(UTC)
        self.state = PlaceState.STARTING
        #: Whether requests should wait for it: False after `WORTH_WAITING` seconds of failures until one is ready.
        self.expected = True
        #: Why the last worker that was started did not get ready; "" if it did.
        self.failure = ""
        #: Whether it did not because memory ran out.
        self.lacks_memory = False
        #: How often a worker was replaced, and why the last one ended that was not told to; "" if none did.
        self.restarts = 0
        self.last_end = ""
        #: How often its worker has died, or did not get ready.
        self.deaths = 0
        self.worker: Worker | None = None
        #: Called when a worker may get work.
        self.on_up = events.worker_up
        #: Waits until there is room for a worker, at its end at the latest; None: there always is.
        self.take_room: TakeRoom | None = None
        #: When the next worker is started (seconds since 1970), None unless it is only waited for that moment.
        self.starts_at: float | None = None
        #: Returns whether it is started now and then once it is given up.
        self.tries_on: Callable[[], bool] = lambda: True
        self._is_unplaced = False  # whether the latest worker was not started because no machine has room for it
        self._waited = 0.0  # for room for the latest worker (seconds)
        #: Called when a worker was lost and is to be replaced.
        self.on_restart: Callable[[], None] = lambda: None
        #: Called when a worker got ready, with its label and the seconds that it took.
        self.on_ready: Callable[[str, float], None] = lambda label, seconds: None
        #: Called when `expected` has become False, and when the place is given up.
        self.on_unavailable: Callable[[], None] = lambda: None
        self._make_worker = make_worker
        self._logger = logging.LoggerAdapter(logger, {"of_worker": worker_id})  # for who follows single workers
        self._events = events
        self._max_retry = max_retry
        self._failures = Restarts(max_retry)
        self._stopping = asyncio.Event()
        #: How the attempt to have a ready worker ends that is under way or next; done while the worker is ready.
        self._attempt: asyncio.Future[WorkerFailed | None] = asyncio.get_running_loop().create_future()
        self._task = in_background(self._run(), f"supervising worker {worker_id}")

    @property
    def ready(self) -> bool:
        """Whether its worker takes jobs."""
        return self.worker is not None and self.worker.ready

    @property
    def gave_up(self) -> bool:
        """Whether it has been failing for so long that a worker is started rarely."""
        return self.state is PlaceState.GAVE_UP

    @property
    def waits(self) -> bool:
        """Whether no machine has room for its worker at present."""
        worker = self.worker
        is_alive = worker is not None and worker.is_launched and not worker.ended.done()
        return self.state is PlaceState.WAITING and not is_alive

    @property
    def condition(self) -> str:
        """The state in a word: that of its worker, as long as there is one, or else that of the place."""
        if self.gave_up or self.waits or self.worker is None or self.worker.state is WorkerState.DIED:
            return self.state.value
        return self.worker.state.value

    @property
    def pid(self) -> int:
        """The process id of its worker, -1 without a worker."""
        return self.worker.pid if self.worker is not None else -1

    @property
    def has_gpu(self) -> bool:
        """Whether its worker has a GPU, on whatever machine."""
        return self.worker is not None and self.worker.has_gpu

    @property
    def gpu_index(self) -> int | None:
        """The GPU of its worker, by nvidia-smi's number; None on a CPU, or on another machine."""
        return self.worker.gpu_index if self.worker is not None else None

    def attempt(self) -> Awaitable[WorkerFailed | None]:
        """Return what waits until the worker is ready (at once if it is), or has failed to get so this time.

        It results in the failure. The attempt is the one that is under way at the call, or the next one.
        """
        return asyncio.shield(self._attempt)

    async def renew(self, limit: float) -> WorkerFailed | None:
        """Let a ready worker finish its jobs for at most ``limit`` seconds, and put another one in its place.

        Return why that one did not get ready; it is tried again. A worker that is starting is waited for.
        """
        worker = self.worker
        if worker is not None and worker.ready:
            self._await_next_attempt()
            await self._events.retire(worker, limit)
            await worker.stop(limit)
        return await self.attempt()

    async def stop(self, limit: float) -> None:
        """Take the worker out of service, let it finish its jobs for at most ``limit`` seconds, and end it."""
        self._stopping.set()
        worker = self.worker
        if worker is not None:
            await self._events.retire(worker, limit)
            await worker.stop(limit)
        await self._task

    async def stopped(self, limit: float) -> None:
        """Wait at most ``limit`` seconds until a `stop` that another task called has finished."""
        await asyncio.wait([self._task], timeout=limit)

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    await self._one_life()
                except Exception as error:
                    await self._end_life(error)
                if not self._stopping.is_set():
                    delay = self._delay(running_time().now())
                    if self.gave_up and not self.tries_on():
                        break
                    await self._pause(delay)
        finally:
            if self._stopping.is_set():
                self._advance("end")
            if not self._attempt.done():
                self._attempt.set_result(WorkerFailed(500, f"worker {self.id} was stopped before it was ready"))

    async def _end_life(self, error: Exception) -> None:
        """End a worker that cannot be looked after because of an error in the server."""
        self._logger.exception("Worker %s is started anew because of an error in the server", self.id)
        if self.worker is not None and not self.worker.ended.done():
            self.worker.kill("of an error in the server")
            await asyncio.wait([self.worker.ended], timeout=_KILL_LIMIT)
        self._advance("lost" if self.state is PlaceState.READY else "failed")
        self.failure = self.last_end = f"the server failed to look after it: {error!r}"
        if not self._attempt.done():
            self._attempt.set_result(WorkerFailed(500, f"worker {self.id}: {self.failure}"))
        self._await_next_attempt()

    async def _pause(self, delay: float) -> None:
        self.starts_at = time.time() + delay
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)
        self.starts_at = None

    def _delay(self, now: float) -> float:
        """Return the seconds until the next worker is to start; its predecessor is gone, or had no room."""
        if self._is_unplaced:
            return self._failures.found_no_room(now)
        delay = self._failures.failed(now, self._waited)
        if self._failures.is_given_up(now):
            if not self.gave_up:
                text = "Worker %s has been failing for %g s: it is started each %d s from now on"
                self._logger.error(text, self.id, self._max_retry, delay)
                self._advance("give_up")
                self.expected = False
                self.on_unavailable()
        elif self.expected and not self._failures.is_worth_waiting(now):
            self.expected = False
            self.on_unavailable()
        self._logger.info("Worker %s starts again in %d s", self.id, delay)
        self.restarts += 1
        self.on_restart()
        return delay

    async def _one_life(self) -> None:
        """Start a worker and wait for its end."""
        worker = self._make_worker()
        try:
            await self._wait_for_room(worker)
            self.worker, launched = worker, time.monotonic()
            await worker.start()
        except WorkerFailed as failure:
            is_known = failure.unplaced and self.failure == str(failure)
            self._advance("no_room" if failure.unplaced else "failed")
            self._is_unplaced = failure.unplaced
            self.lacks_memory = failure.lacks_memory
            self.deaths += not failure.unplaced and not self._stopping.is_set()
            if not self._stopping.is_set() and not is_known:
                if failure.traceback_printed:
                    # Without the error's name, so that a search for it finds the traceback in the model log.
                    self._logger.error("Worker %s could not load the model; the model log tells why", worker.label)
                else:
                    self._logger.error("Worker %s did not get ready: %s", worker.label, failure)
                self.failure = self.last_end = str(failure)
            self._attempt.set_result(failure)
            self._await_next_attempt()
            return
        self._is_unplaced = False
        ready_at = time.monotonic()
        if worker.state is WorkerState.READY:
            self._logger.info("Worker %s is ready after %.2f s", _named(worker), ready_at - launched)
            self._advance("ready")
            self.failure = ""
            self.lacks_memory = False
            self.expected = True
            self.on_ready(worker.label, ready_at - launched)
            self.on_up(worker)
            self._attempt.set_result(None)
        await worker.disconnected.wait()
        if self.state is PlaceState.READY:
            self._advance("lost")
        self._await_next_attempt()
        self._events.worker_lost(worker)
        reason = await worker.ended
        if worker.state is WorkerState.DIED:
            self._logger.error("Worker %s %s", _named(worker), reason)
            self.last_end = reason
            self.deaths += 1
        has_worked = worker.has_worked or worker.state is WorkerState.STOPPED  # who was told to stop has not failed
        self._failures.was_ready(time.monotonic() - ready_at, has_worked=has_worked)

    def _advance(self, event: PlaceEvent) -> None:
        self.state = PLACE_TRANSITIONS[self.state, event]

    async def _wait_for_room(self, worker: Worker) -> None:
        """Wait until there is room for a worker. Raises WorkerFailed: there is none, or the place is to end."""
        if self.take_room is None:
            return
        began = running_time().now()
        self._advance("no_room")
        waits = [asyncio.create_task(self.take_room(worker)), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                worker.ended.set_result("was never started")
                raise WorkerFailed(500, f"worker {self.id} was stopped before there was room for it")
            worker.gpu_room = waits[0].result()
        finally:
            self._waited = running_time().now() - began
            for each in waits:
                each.cancel()
        self._advance("room")

    def _await_next_attempt(self) -> None:
        if self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()


def _named(worker: Worker) -> str:
    """Return a worker's label, with the id of its process where that is one of this machine's."""
    return f"{worker.label} (pid {worker.pid})" if worker.pid >= 0 else worker.label
