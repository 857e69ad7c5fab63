"""One worker: a process (or several, see `ranks`) with its connections, from launch to exit."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torchserve_py.jobs.inference_job import InferenceJob, encode_batch
from torchserve_py.jobs.parts import Input, Part
from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.batch_tokens import BatchTokens
from torchserve_py.workers.connection import Connection
from torchserve_py.workers.events import WorkerEvents
from torchserve_py.workers.launch import Launch
from torchserve_py.workers.lifecycle import WORKER_TRANSITIONS, WorkerEvent, WorkerLimits, WorkerState
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.process import StartedProcess, start_process
from torchserve_py.workers.ranks import Questions, Ranks
from torchserve_py.workers.result_rows import part_of
from torchserve_py.workers.startup import Startup, WorkerFailed, checked_declarations
from torchserve_py.workers.watchdog import Watchdog
from ts.protocol.frames import encode
from ts.protocol.messages import (
    CANCEL,
    DECLARES,
    END_SEQUENCE,
    EXPOSE,
    EXPOSED,
    HEALTH,
    HEALTHY,
    HEARTBEAT_CHANNEL,
    INPUT,
    LEAVING,
    LOAD,
    LOADED,
    METRICS,
    PONG,
    RESULTS,
    STOP,
    TAKEN,
    Hello,
    Load,
)

logger = logging.getLogger(__name__)

#: How long a process may outlive its connection, and a connection its process (seconds).
_LINGER = 1.0
#: How long a process that did not get ready may take to go once it was sent SIGKILL (seconds).
_KILL_LIMIT = 20.0
#: How many values a message of a worker may have, a body being one value: so many, and so many more for each row of a
#: batch.
_MAX_VALUES = 100_000
_MAX_VALUES_OF_ROW = 1000


class Worker:
    """One process with one copy of the model.

    `start` it, wait for `ended`; in between it takes jobs. ``id`` names its place in the pool and outlives it: the
    worker that replaces a dead one has the same.
    """

    def __init__(
        self,
        worker_id: str,
        label: str,
        launch: Launch,
        load: Load,
        limits: WorkerLimits,
        listener: WorkerListener,
        events: WorkerEvents,
    ) -> None:
        self.id = worker_id
        self.label = label
        self.state = WorkerState.STARTING
        self.started_at = datetime.now(UTC)
        #: When the latest batch was sent (monotonic seconds).
        self.sent_at = 0.0
        self.gpu_index = launch.gpu_index
        #: Resolves to why the process is gone, once it is and its output was read.
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: Set once its connection is gone: no result comes any more, though the process may live on for a moment.
        self.disconnected = asyncio.Event()
        #: What the jobs in flight are told when the worker is lost.
        self.loss_cause = Cause.worker_died
        #: What the model tells about itself, once it is loaded; see `ts.protocol.messages.Loaded`.
        self.declares: Mapping[str, Any] = {}
        self._launch, self._load, self._limits = launch, load, limits
        self._listener, self._events = listener, events
        self._process: StartedProcess | None = None
        self._launching: asyncio.Task[StartedProcess] | None = None
        torchrun = launch.torchrun
        self._ranks = Ranks(torchrun.processes if torchrun else 1, every_rank=bool(torchrun and torchrun.every_rank))
        #: The connection that results come from.
        self._jobs: Connection | None = None
        self._startup = Startup(label, self._ranks.count, self.ended)
        #: Whether nothing is received from it, because its readers are slow.
        self.paused = False
        self._questions = Questions(self._ranks.send_request, self.ended)
        self._watchdog = Watchdog(self, self._ranks, limits, events, independent=load["asynchronous"])
        self._kill_reason = ""
        self._tokens: BatchTokens | None = None
        self._reaper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> Mapping[str, InferenceJob]:
        """The jobs that it has: those that were sent to it and that it has not answered to the end."""
        return self._events.jobs_of(self)

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""
        return self.state is WorkerState.READY and not self.disconnected.is_set()

    @property
    def pid(self) -> int:
        """The id of the process that answers (a launcher's until that has connected), -1 before there is one."""
        launched = self._process.pid if self._process is not None else -1
        return self._ranks.pids.get(0) or launched

    async def start(self) -> None:
        """Launch the process and load the model.

        Raises WorkerFailed: it did not come up; no process is left behind.
        """
        token = self._listener.expect(self)
        try:
            await self._launch_process(token)
            await self._startup.connection(self._limits.connect)
            loaded = await self._startup.model(self._limits.load)
        except BaseException:
            await self._abandon()
            raise
        finally:
            self._listener.forget(token)
        self.declares = loaded["declares"]
        self._advance("loaded")
        self._ranks.start_listening(time.monotonic())
        self._watcher = asyncio.create_task(self._watchdog.run())

    async def stop(self, limit: float) -> None:
        """Ask a ready worker to stop, kill it when it is not ready or not gone within ``limit`` seconds.

        Waits until it is gone. Its own stop limit holds too.
        """
        if self.ended.done():
            return
        ready = self.ready
        self._advance("stop")
        if ready:
            self.resume()
            self._ranks.send_all(encode([STOP]))
            await asyncio.wait([self.ended], timeout=min(limit, self._limits.stop))
        if not self.ended.done():
            self.kill("it was told to stop")
        await asyncio.wait([self.ended])  # the pool does not wait for ever

    def kill(self, reason: str) -> None:
        """End the process at once; ``reason`` is logged."""
        if not self._kill_reason:
            self._kill_reason = reason
            logger.debug("Worker %s is killed: %s", self.label, reason)
        if self._process is not None:
            self._process.kill()
        elif self._launching is not None and self._launch.remote is not None:  # that may take minutes
            self._launching.cancel()

    # Work, called by the dispatcher.

    def send(self, jobs: Sequence[InferenceJob], moment_of: Callable[[float], float] | None) -> None:
        """Send a batch as `encode_batch` encodes it."""
        self._ranks.send_request(encode_batch(jobs, moment_of))

    def send_ahead(
        self, jobs: Sequence[InferenceJob], moment_of: Callable[[float], float] | None, *, joins: bool
    ) -> None:
        """Send a batch as `send` does, to a worker that runs another; until it begins the batch, it can be taken back.

        ``joins`` tells whether the jobs belong to the batch that was sent ahead last.
        """
        assert self._tokens is not None, "only the scheduler of a model with tokens sends ahead"
        pipe = self._tokens.pipe_of(joins=joins)
        buffers = encode_batch(jobs, moment_of, (pipe, joins))
        self._tokens.add(pipe)
        self._ranks.send_request(buffers)

    def take_back(self) -> int:
        """Return how many frames of the batch that was sent ahead last the worker has not begun, and now never will."""
        return 0 if self._tokens is None else self._tokens.take_back()

    def begin(self, jobs: Sequence[InferenceJob], now: float) -> None:
        """Time the jobs from now on (monotonic seconds)."""
        self.sent_at = now
        for job in jobs:
            if not job.request.more_input:  # it lasts as long as its client likes
                job.heard_at = now
        if self.paused:  # what slow readers hold back must not hold back the new jobs
            self.resume()

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Tell the worker to drop rows that it has."""
        self._ranks.cancel(encode([CANCEL, list(job_ids)]))

    def send_input(self, job_id: str, given: Input) -> None:
        """Send a further input of a job that it has."""
        more, body = given
        self._ranks.send_request(encode([INPUT, job_id, more, body]))

    async def check_health(self, limit: float) -> bool:
        """Ask the model whether it is healthy; one that does not answer within ``limit`` seconds is not."""
        return self.ready and bool(await self._questions.ask(HEALTH, limit))

    async def expose_metrics(self, limit: float) -> bytes | None:
        """What the model's code has counted itself, in Prometheus' text format; None if it does not say in time."""
        return await self._questions.ask(EXPOSE, limit) if self.ready else None

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        """Tell the handler that a sequence is over since that moment (monotonic seconds)."""
        self._ranks.send_request(encode([END_SEQUENCE, [(sequence_id, reason, moment)]]))

    def pause(self) -> None:
        """Take no results for now, so that the worker is slowed down to the pace of its readers."""
        if not self.paused and self._jobs is not None:
            self.paused = True
            self._jobs.pause()

    def resume(self) -> None:
        """Take results again."""
        if self.paused and self._jobs is not None:
            self.paused = False
            self._watchdog.resume(time.monotonic())
            self._jobs.resume()

    # Connections, called by the listener and by the connections themselves.

    def connected(self, connection: Connection, hello: Hello) -> None:
        """Take over a connection that showed this worker's token."""
        if self.ended.done():
            raise ValueError("the process has ended meanwhile")
        self._ranks.attach(connection, hello)
        connection.peer = f"worker {self.label}"
        if hello["channel"] == HEARTBEAT_CHANNEL:
            connection.on_message, connection.on_close = self._beat, self._heartbeat_closed
        else:
            rows = max(1, self._load["batch_size"])
            max_frame = self._load["max_response_size"] * rows + 2**20
            connection.limit_frames(max_frame, _MAX_VALUES + _MAX_VALUES_OF_ROW * rows)
            connection.on_message, connection.on_close = self._received, self._jobs_closed
            if hello["rank"] == 0:
                self._jobs = connection
            if self.state is not WorkerState.LOADING:  # else another of its processes has connected
                self._advance("connected")
            if self.state is WorkerState.LOADING:
                gpu_id = self._load["gpu_id"]  # each process has its own of the worker's devices
                own: Load = {**self._load, "gpu_id": None if gpu_id is None else gpu_id + hello["rank"]}
                connection.send(encode([LOAD, own]))
        if self._process is not None and connection.peer_pid is not None:
            self._process.adopt(connection.peer_pid)
        if self._ranks.complete:
            self._startup.connected()

    def _received(self, connection: Connection, message: list[Any]) -> None:
        kind, now = message[0], time.monotonic()
        self._watchdog.last_heard = now
        if kind == RESULTS and connection is self._jobs:
            self._results(message[1], message[2])
        elif kind == LEAVING:
            self._events.take_out(self)
        elif kind == TAKEN:
            self._events.taken(self, message[1], message[2])
        elif kind in (HEALTHY, EXPOSED):
            self._questions.answered(message[1], message[2])
        elif kind == DECLARES:
            self.declares = checked_declarations(message[1])
        elif kind == METRICS:
            self._events.model_metrics(message[1])
        elif kind == LOADED:
            self._startup.loaded(message[1])
        else:
            raise ValueError(f"unexpected message {kind!r}")

    def _results(self, rows: list[Any], handler_seconds: float) -> None:
        """Pass result rows on; those before one that names no job are still delivered.

        Raises ValueError: a row names no job, or the time of the handler is no number of seconds.
        """
        if type(handler_seconds) not in (float, int) or not 0 <= handler_seconds < math.inf:
            raise ValueError(f"its handler took {handler_seconds!r} seconds")
        results: list[Part] = []
        try:
            results.extend(map(part_of, rows))
        finally:
            self._events.results(self, results, handler_seconds)

    def _beat(self, connection: Connection, message: list[Any]) -> None:
        if message[0] != PONG:
            raise ValueError(f"unexpected message {message[0]!r}")
        self._ranks.heard(connection, time.monotonic())

    def _jobs_closed(self, connection: Connection, reason: str) -> None:
        self.disconnected.set()
        if self._process is not None and self._process.running:
            asyncio.get_running_loop().call_later(_LINGER, self.kill, f"it {reason}")

    def _heartbeat_closed(self, connection: Connection, reason: str) -> None:
        logger.debug("The heartbeat of worker %s ended: it %s", self.label, reason)

    # Life.

    def _advance(self, event: WorkerEvent) -> None:
        self.state = WORKER_TRANSITIONS[self.state, event]

    async def _launch_process(self, token: str) -> None:
        self._tokens = BatchTokens() if self._launch.ahead else None
        starting = start_process(self._launch, self._listener.path, token, self.id, self.label, self._tokens)
        self._launching = asyncio.create_task(starting)
        try:
            self._process = await self._launching
        except asyncio.CancelledError:
            if not self._kill_reason:
                raise
            raise WorkerFailed(500, f"worker {self.label} was not started because {self._kill_reason}") from None
        for pid in self._ranks.pids.values():
            self._process.adopt(pid)
        self._reaper = asyncio.create_task(self._reap(self._process))
        if self._kill_reason:  # it was to be stopped while it was being launched
            self._process.kill()

    async def _abandon(self) -> None:
        self.kill("it did not get ready")
        if self._process is not None:
            await asyncio.wait([self.ended], timeout=_KILL_LIMIT)
            if not self.ended.done():
                logger.error("Worker %s (pid %d) does not end, not even by SIGKILL", self.label, self.pid)
            return
        if self._tokens is not None:
            self._tokens.close()
        if not self.ended.done():
            self.ended.set_result("was never started")

    async def _reap(self, process: StartedProcess) -> None:
        """Wait for the end of the process; results that it sent before are still taken."""
        reason = await process.wait()
        if self._jobs is not None:
            self.resume()
            try:
                await asyncio.wait_for(self.disconnected.wait(), _LINGER)
            except TimeoutError:
                logger.warning("A child process of worker %s holds its connection open", self.label)
        self._ranks.close()
        if self._tokens is not None:
            self._tokens.close()
        self._advance("exited" if self.state is WorkerState.STOPPING else "died")
        if self._kill_reason:
            reason = f"was killed by the server because {self._kill_reason}"
        self.ended.set_result(reason)
        if self._watcher is not None:
            self._watcher.cancel()
