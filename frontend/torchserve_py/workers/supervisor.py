"""Keeps one place of a pool filled: starts its worker, and replaces it when it dies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeAlias

from torchserve_py.background_tasks import in_background
from torchserve_py.transport.running_time import running_time
from torchserve_py.workers.lifecycle import WorkerState
from torchserve_py.workers.startup import WorkerFailed
from torchserve_py.workers.worker import Worker, WorkerEvents

logger = logging.getLogger(__name__)

#: Seconds before each restart of a failing worker: Fibonacci numbers as in TorchServe, but the first at once.
RESTART_DELAYS = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
#: Seconds before each further attempt to find a machine with room for a worker, which is no failure of the worker.
PLACE_DELAY = 1
#: A worker that was ready this long (seconds) before it died starts the delays anew.
_STABLE_AFTER = 10.0
#: Seconds of failed starts after which requests no longer wait for the worker. A worker that fails at once has then
#: been started seven times (see `RESTART_DELAYS`): the model itself is probably the cause, and an error helps its
#: clients more than further waiting. A worker that loads for longer has not failed, and requests wait for it.
WORTH_WAITING = 10.0


#: Waits until a worker may start. Raises WorkerFailed: it may not.
TakeRoom: TypeAlias = Callable[[Worker], Coroutine[Any, Any, None]]


class Supervisor:
    """One place of a pool; its id is that of every worker that fills it in turn.

    It gives up when a worker has not got ready for ``max_retry`` seconds since the first failure. The time in which no
    machine has room for the worker does not count: that is looked for as long as it takes.
    """

    def __init__(
        self, worker_id: str, make_worker: Callable[[], Worker], events: WorkerEvents, max_retry: float
    ) -> None:
        self.id = worker_id
        self.started_at = datetime.now(UTC)
        self.gave_up = False
        #: Whether requests should wait for it: False after `WORTH_WAITING` seconds of failures until one is ready.
        self.expected = True
        #: Why the last worker that was started did not get ready; "" if it did.
        self.failure = ""
        #: Whether it did not because memory ran out.
        self.lacks_memory = False
        #: How often a worker was replaced, and why the last one ended that was not told to; "" if none did.
        self.restarts = 0
        self.last_end = ""
        self.worker: Worker | None = None
        #: Called when a worker may get work.
        self.on_up = events.worker_up
        #: Waits until there is room for a worker, at its end at the latest; None: there always is.
        self.take_room: TakeRoom | None = None
        self._unplaced = False
        self._waited = 0.0  # for room for the latest worker (seconds)
        #: Called when a worker was lost and is to be replaced.
        self.on_restart: Callable[[], None] = lambda: None
        #: Called when a worker got ready, with its label and the seconds that it took.
        self.on_ready: Callable[[str, float], None] = lambda label, seconds: None
        #: Called when `expected` has become False, and when `gave_up` has become True.
        self.on_unavailable: Callable[[], None] = lambda: None
        self._make_worker = make_worker
        self._logger = logging.LoggerAdapter(logger, {"of_worker": worker_id})  # for who follows single workers
        self._events = events
        self._max_retry = max_retry
        self._stopping = asyncio.Event()
        #: How the attempt to have a ready worker ends that is under way or next; done while the worker is ready.
        self._attempt: asyncio.Future[WorkerFailed | None] = asyncio.get_running_loop().create_future()
        self._task = in_background(self._run(), f"supervising worker {worker_id}")

    @property
    def ready(self) -> bool:
        """Whether its worker takes jobs."""
        return self.worker is not None and self.worker.ready

    @property
    def waits(self) -> bool:
        """Whether no machine has room for its worker at present."""
        worker = self.worker
        return self._unplaced and not (worker is not None and worker.is_launched and not worker.ended.done())

    @property
    def condition(self) -> str:
        """The state of its worker in a word: a `WorkerState`, or what follows the end of the worker."""
        if self.gave_up:
            return "gave up"
        if self.waits:
            return "waiting"
        if self.worker is None or self.worker.state is WorkerState.DIED:
            return "restarting" if self.restarts or self.worker else WorkerState.STARTING.value
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
            await self._keep_filled()
        except Exception:
            self._logger.exception(
                "Worker %s is not kept running any longer because of an error in the server", self.id
            )
            self.gave_up = True
            self.on_unavailable()
        finally:
            if not self._attempt.done():
                self._attempt.set_result(WorkerFailed(500, f"worker {self.id} was stopped before it was ready"))

    async def _keep_filled(self) -> None:
        failing_since: float | None = None
        attempt, looked, searched = 0, 0.0, 0.0  # `searched`: seconds without a machine since the first failure
        while not self._stopping.is_set():
            ready_for = await self._one_life()
            if self._stopping.is_set():
                break
            if ready_for is not None:
                failing_since = None
                if ready_for > _STABLE_AFTER:
                    attempt = 0
            now = running_time().now()
            if failing_since is None:
                failing_since, searched = now, 0.0
            elif self._unplaced:
                searched += now - looked
            else:
                failing_since += self._waited
            looked = now
            if now - failing_since - searched > self._max_retry and not self._unplaced:
                self._give_up()
                break
            if self.expected and now - failing_since > WORTH_WAITING:
                self.expected = False
                self.on_unavailable()
            delay = PLACE_DELAY
            if not self._unplaced:
                delay = RESTART_DELAYS[min(attempt, len(RESTART_DELAYS) - 1)]
                attempt += 1
                self._logger.info("Worker %s starts again in %d s", self.id, delay)
                self.restarts += 1
                self.on_restart()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)

    async def _one_life(self) -> float | None:
        """Start a worker and wait for its end; return for how many seconds it was ready, None if it never was."""
        worker = self._make_worker()
        try:
            await self._wait_for_room(worker)
            self.worker, launched = worker, time.monotonic()
            await worker.start()
        except WorkerFailed as failure:
            is_known = failure.unplaced and self.failure == str(failure)
            self._unplaced = failure.unplaced
            self.lacks_memory = failure.lacks_memory
            if not self._stopping.is_set() and not is_known:
                if failure.traceback_printed:
                    # Without the error's name, so that a search for it finds the traceback in the model log.
                    self._logger.error("Worker %s could not load the model; the model log tells why", worker.label)
                else:
                    self._logger.error("Worker %s did not get ready: %s", worker.label, failure)
                self.failure = self.last_end = str(failure)
            self._attempt.set_result(failure)
            self._await_next_attempt()
            return None
        self._unplaced = False
        ready_at = time.monotonic()
        if worker.state is WorkerState.READY:
            self._logger.info("Worker %s is ready after %.2f s", _named(worker), ready_at - launched)
            self.failure = ""
            self.lacks_memory = False
            self.expected = True
            self.on_ready(worker.label, ready_at - launched)
            self.on_up(worker)
            self._attempt.set_result(None)
        await worker.disconnected.wait()
        self._await_next_attempt()
        self._events.worker_lost(worker)
        reason = await worker.ended
        if worker.state is WorkerState.DIED:
            self._logger.error("Worker %s %s", _named(worker), reason)
            self.last_end = reason
        return time.monotonic() - ready_at

    async def _wait_for_room(self, worker: Worker) -> None:
        """Wait until there is room for a worker. Raises WorkerFailed: there is none, or the place is to end."""
        if self.take_room is None:
            return
        self._unplaced, began = True, running_time().now()
        waits = [asyncio.create_task(self.take_room(worker)), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                worker.ended.set_result("was never started")
                raise WorkerFailed(500, f"worker {self.id} was stopped before there was room for it")
            waits[0].result()
        finally:
            self._waited = running_time().now() - began
            for each in waits:
                each.cancel()
        self._unplaced = False

    def _await_next_attempt(self) -> None:
        if self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()

    def _give_up(self) -> None:
        self._logger.error("Worker %s is not started again: it has been failing for %g s", self.id, self._max_retry)
        self.gave_up = True
        self.on_unavailable()


def _named(worker: Worker) -> str:
    """Return a worker's label, with the id of its process where that is one of this machine's."""
    return f"{worker.label} (pid {worker.pid})" if worker.pid >= 0 else worker.label
