"""One worker: a process (or several, see `Ranks`) with its connections, from launch to exit, and what watches it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.batch_encoding import encode_batch
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.function_call import CallModel
from torchserve_py.core.jobs.parts import Input, Part, part_of
from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.lifecycle import WORKER_TRANSITIONS, WorkerEvent, WorkerLimits, WorkerState
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.startup import Startup, WorkerFailed, checked_declarations
from torchserve_py.core.workers.worker_calls import WorkerCalls
from torchserve_py.core.workers.worker_launcher import Launcher, StartedProcess
from torchserve_py.net.running_time import running_time
from ts.protocol import messages
from ts.protocol.frames import Buffer, encode
from ts.protocol.messages import Ahead, EndedSequence, Hello, Load

logger = logging.getLogger(__name__)

#: How long a process may outlive its connection, and a connection its process (seconds).
_LINGER = 1.0
#: How long a process that did not get ready may take to go once it was sent SIGKILL (seconds).
_KILL_LIMIT = 20.0
#: How many values a message of a worker may have, a body being one value: so many, and so many more for each row of a
#: batch.
_MAX_VALUES = 100_000
_MAX_VALUES_OF_ROW = 1000
#: How many parts of answers are passed on together: an event loop that has much to pass on must come round.
_MOST_PARTS: Final = 64
#: How often the limits are checked: this many times in the shortest of them, but at least once a second.
_CHECKS_PER_LIMIT = 5


class WorkerEvents(Protocol):
    """Takes what workers send and what becomes of them; knows their jobs. It is `dispatch.dispatcher.Dispatcher`."""

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float, heard_at: float) -> None:
        """Take parts of responses, and when they came, by the time in which this process runs."""

    def taken(self, worker: Worker, job_id: str, count: int) -> None:
        """Note that the model has taken ``count`` further inputs of a job."""

    def wanted(self, worker: Worker, sequence_ids: Sequence[str]) -> None:
        """Take ids of stored sequences that another server asks for."""

    def evictions(self, may_evict: bool, count: int) -> None:
        """Take whether the store may drop sequences by itself, and how many keys it has dropped ever."""

    def store_size(self, size: int, sequences: int | None) -> None:
        """Take how many bytes the store of sequences has, and how many sequences, if that is known."""

    def model_metrics(self, entries: list[list[Any]]) -> None:
        """Take metrics that the handler has emitted."""

    def jobs_of(self, worker: Worker) -> Mapping[str, Call]:
        """Return the jobs that the worker has, by id."""

    def cancel(self, job: Call, cause: Cause) -> None:
        """End a job for this cause, and tell its worker to drop it."""

    def set_workers(self, count: int) -> None:
        """Take how many workers can be expected to take jobs."""

    def worker_up(self, worker: Worker) -> None:
        """Give jobs to the worker from now on."""

    def take_out(self, worker: Worker) -> None:
        """Give the worker no more jobs."""

    def worker_lost(self, worker: Worker) -> None:
        """End the jobs of a worker whose connection is gone."""

    def hands_over(self, worker: Worker) -> bool:
        """Whether the sequences of the worker can move to others."""

    async def vacate(self, worker: Worker, limit: float) -> str:
        """Move the sequences of the worker to others within ``limit`` seconds; return why some stay, "" if none does.

        The worker gets no new ones before `reopen` is called.
        """

    def reopen(self, worker: Worker) -> None:
        """Give new sequences to the worker again, which stays after all."""

    async def retire(self, worker: Worker, limit: float) -> None:
        """Give the worker no more jobs, and wait at most ``limit`` seconds until it has none left."""


class Worker:
    """One process with one copy of the model.

    `start` it, wait for `ended`; in between it takes jobs. ``id`` names its place in the pool and outlives it: the
    worker that replaces a dead one has the same.
    """

    takes_ahead: Final = True  # it can have pieces of a sequence that changes before it moves here

    def __init__(
        self,
        worker_id: str,
        label: str,
        launcher: Launcher,
        launch: Launch,
        load: Load,
        limits: WorkerLimits,
        listener: WorkerListener,
        events: WorkerEvents,
        call_model: CallModel | None = None,
    ) -> None:
        self.id = worker_id
        self.label = label
        self.state = WorkerState.STARTING
        self.started_at = datetime.now(UTC)
        #: By this clock the worker and its jobs are judged.
        self._clock = running_time()
        #: When the latest batch was sent, by that clock.
        self.sent_at = 0.0
        #: When anything else was sent, batches ahead apart.
        self._told_at = 0.0
        self.gpu_index = launch.gpu_index
        #: How many bytes of each of its GPUs it may take; None: there is no limit.
        self.gpu_room: int | None = None
        #: Whether it has a GPU, perhaps one of another machine's, which has no index here.
        self.has_gpu = load["gpu_id"] is not None
        #: Resolves to why the process is gone, once it is and its output was read.
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: Set once its connection is gone: no result comes any more, though the process may live on for a moment.
        self.disconnected = asyncio.Event()
        #: What the jobs in flight are told when the worker is lost.
        self.loss_cause = Cause.worker_died
        #: Parts of answers that have come together and were not passed on yet.
        self._parts: list[Part] = []
        #: Whether it has answered a batch.
        self.has_worked = False
        #: What the model tells about itself, once it is loaded; see `ts.protocol.messages.Loaded`.
        self.declares: Mapping[str, Any] = {}
        self._launcher, self._launch, self._load, self._limits = launcher, launch, load, limits
        self._listener, self._events = listener, events
        self._process: StartedProcess | None = None
        self._launching: asyncio.Task[StartedProcess] | None = None
        group = launch.ranks
        self._ranks = Ranks(group.processes if group else 1, every_rank=bool(group and group.every_rank))
        #: The connection that results come from.
        self._jobs: WorkerConnection | None = None
        self._startup = Startup(label, self._ranks.count, self.ended)
        #: Whether nothing is received from it, because its readers are slow.
        self.paused = False
        self._questions = Questions(self._tell, self.ended)
        self._watchdog = Watchdog(self, self._ranks, limits, events, independent=load["asynchronous"])
        #: Those of other models that its model makes, if it may make some.
        self._calls = None if call_model is None else WorkerCalls(call_model, self._tell)
        #: Take the pieces of what it was asked to give, by the numbers of the moves; see `core.handover`.
        self.relays: dict[int, Callable[[bytes], None]] = {}
        self._kill_reason = ""
        self._tokens: BatchTokens | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> Mapping[str, Call]:
        """The jobs that it has: those that were sent to it and that it has not answered to the end."""
        return self._events.jobs_of(self)

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""
        return self.state is WorkerState.READY and not self.disconnected.is_set()

    @property
    def is_launched(self) -> bool:
        """Whether its process has been started, wherever."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The id of the process that answers (a launcher's until that has connected), -1 before there is one."""
        launched = self._process.pid if self._process is not None else -1
        return self._ranks.pids.get(0) or launched

    @property
    def pids(self) -> Collection[int]:
        """The ids of the processes that have connected, one for each rank."""
        return self._ranks.pids.values()

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
        self._watcher = in_background(self._watchdog.run(), f"watching worker {self.label}")

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
            self._ranks.send_all(encode([messages.STOP]))
            await self._clock.wait([self.ended], min(limit, self._limits.stop))
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
        elif self._launching is not None and self._launcher.is_remote:  # that may take minutes
            self._launching.cancel()

    # Work, called by the dispatcher.

    @property
    def left_unread(self) -> bool:
        """Whether it is gone, and has not read the batch that it was sent last; False if that is not known.

        Nothing may have been sent ahead behind that batch.
        """
        is_reset = self._jobs is not None and self._jobs.left_unread
        return is_reset and self._ranks.count == 1 and self._told_at < self.sent_at

    def _tell(self, buffers: list[Buffer]) -> None:
        """Send what is no batch."""
        self._told_at = self._clock.now()
        self._ranks.send_request(buffers)

    def send(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None) -> None:
        """Send a batch as `encode_batch` encodes it."""
        self._ranks.send_request(encode_batch(jobs, moment_of))

    def send_ahead(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None, *, joins: bool) -> None:
        """Send a batch as `send` does, to a worker that runs another; until it begins the batch, it can be taken back.

        ``joins`` tells whether the jobs belong to the batch that was sent ahead last.
        """
        assert self._tokens is not None, "only the scheduler of a model with tokens sends ahead"
        pipe = self._tokens.pipe_of(joins=joins)
        buffers = encode_batch(jobs, moment_of, Ahead(pipe, joins))
        self._tokens.add(pipe)
        self._ranks.send_request(buffers)

    def take_back(self) -> int:
        """Return how many frames of the batch that was sent ahead last the worker has not begun, and now never will."""
        return 0 if self._tokens is None else self._tokens.take_back()

    def begin(self, now: float) -> None:
        """Note that it begins a batch, by the time in which this process runs."""
        self.sent_at = now
        if self.paused:  # what slow readers hold back must not hold back the new jobs
            self.resume()

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Tell the worker to drop rows that it has."""
        self._told_at = self._clock.now()
        self._ranks.cancel(encode([messages.CANCEL, list(job_ids)]))

    def send_input(self, job_id: str, given: Input) -> None:
        """Send a further input of a job that it has."""
        more, body = given
        self._tell(encode([messages.INPUT, job_id, more, body]))

    async def ask(self, kind: str, limit: float, *fields: Any) -> Any:
        """Return the answer to a question; None if there is none within ``limit`` seconds."""
        return await self._questions.ask(kind, limit, fields) if self.ready else None

    @property
    def hands_over(self) -> bool:
        """Whether it can give its sequences to other workers, and take theirs."""
        return self._ranks.count == 1 and bool(self.declares.get("sequence_states", {}).get("handsOver"))

    def send_state(self, sequence_id: str, piece: Buffer) -> None:
        """Send a piece of a sequence that another worker gives, or another server has left."""
        self._tell(encode([messages.STATE, sequence_id, piece], large=True))

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        """Tell the handler that a sequence is over since that moment (`ts.protocol.boot_clock`)."""
        self._tell(encode([messages.END_SEQUENCE, [EndedSequence(sequence_id, reason, moment)]]))

    def pause(self) -> None:
        """Take no results for now, so that the worker is slowed down to the pace of its readers."""
        if not self.paused and self._jobs is not None:
            self.paused = True
            self._jobs.pause()

    def resume(self) -> None:
        """Take results again."""
        if self.paused and self._jobs is not None:
            self.paused = False
            self._watchdog.resume(self._clock.now())
            self._jobs.resume()

    # Connections, called by the listener and by the connections themselves.

    def connected(self, connection: WorkerConnection, hello: Hello) -> None:
        """Take over a connection that showed this worker's token."""
        if self.ended.done():
            raise ValueError("the process has ended meanwhile")
        self._ranks.attach(connection, hello)
        connection.peer = f"worker {self.label}"
        if hello["channel"] == messages.HEARTBEAT_CHANNEL:
            connection.on_message, connection.on_close = self._beat, self._heartbeat_closed
        else:
            rows = max(1, self._load["batch_size"])
            max_frame = self._load["max_response_size"] * rows + 2**20
            connection.limit_frames(max_frame, _MAX_VALUES + _MAX_VALUES_OF_ROW * rows)
            connection.on_message, connection.on_close = self._received, self._jobs_closed
            connection.on_handled = self._handled
            if hello["rank"] == 0:
                self._jobs = connection
            if self.state is not WorkerState.LOADING:  # else another of its processes has connected
                self._advance("connected")
            if self.state is WorkerState.LOADING:
                gpu_id = self._load["gpu_id"]  # each process has its own of the worker's devices
                own: Load = {
                    **self._load,
                    "gpu_id": None if gpu_id is None else gpu_id + hello["rank"],
                    "gpu_room": self.gpu_room,
                }
                connection.send(encode([messages.LOAD, own]))
        if self._process is not None and connection.peer_pid is not None:
            self._process.adopt(connection.peer_pid)
        if self._ranks.complete:
            self._startup.connected()

    def _received(self, connection: WorkerConnection, message: list[Any]) -> None:
        if message[0] == messages.RESULTS and connection is self._jobs and len(message) == 3:
            self._results(message[1], message[2])
            return
        self._watchdog.last_heard = self._clock.now()
        match message:
            case [messages.LEAVING]:
                self._events.take_out(self)
            case [messages.STATE, number, piece]:
                if (relay := self.relays.get(number)) is not None:  # else its move is over
                    relay(piece)
            case [messages.TAKEN, job_id, count]:
                self._events.taken(self, job_id, count)
            case [messages.CALL | messages.NEXT_PART | messages.DROP_CALL, *_] if self._calls is not None:
                self._calls.received(message, self.in_flight)
            case [messages.ANSWER, number, answer]:
                self._questions.answered(number, answer)
            case [messages.DECLARES, declarations]:
                self.declares = checked_declarations(declarations)
            case [messages.METRICS, metrics]:
                self._events.model_metrics(metrics)
            case [messages.LOADED, loaded]:
                self._startup.loaded(loaded)
            case [kind, *_]:
                raise ValueError(f"unexpected message {kind!r}")

    def _results(self, rows: list[Any], handler_seconds: float) -> None:
        """Take result rows. Raises ValueError: a row names no job, or the time of the handler is no number of seconds.

        Parts that a handler has sent while it runs are passed on together with those that come right behind them.
        """
        if type(handler_seconds) not in (float, int) or not 0 <= handler_seconds < math.inf:
            raise ValueError(f"its handler took {handler_seconds!r} seconds")
        if handler_seconds and self._parts:  # it is of the answers in this message alone
            self._pass_on(0.0)
        try:
            self._parts.extend(map(part_of, rows))
        finally:
            if handler_seconds or len(self._parts) >= _MOST_PARTS:
                self._pass_on(handler_seconds)

    def _pass_on(self, handler_seconds: float) -> None:
        """Pass on the parts that have come; those before a row that names no job, too."""
        self._watchdog.last_heard = heard_at = self._clock.now()
        parts, self._parts = self._parts, []
        self._events.results(self, parts, handler_seconds, heard_at)
        self.has_worked = True

    def _handled(self) -> None:
        """Pass on what has come: all messages that have come together were handled."""
        if self._parts:
            self._pass_on(0.0)

    def _beat(self, connection: WorkerConnection, message: list[Any]) -> None:
        match message:
            case [messages.PONG, _]:
                self._ranks.heard(connection)
            case [messages.WANTED, sequence_ids]:
                self._events.wanted(self, [str(each) for each in sequence_ids])
            case [messages.EVICTIONS, bool() as may_evict, int() as count]:
                self._events.evictions(may_evict, count)
            case [messages.STORE_SIZE, int() as size, (int() | None) as sequences]:
                self._events.store_size(size, sequences)
            case [kind, *_]:
                raise ValueError(f"unexpected message {kind!r}")

    def _jobs_closed(self, connection: WorkerConnection, reason: str) -> None:
        self.disconnected.set()
        if self._calls is not None:
            self._calls.close()
        if self._process is not None and self._process.running:
            asyncio.get_running_loop().call_later(_LINGER, self.kill, f"it {reason}")

    def _heartbeat_closed(self, connection: WorkerConnection, reason: str) -> None:
        logger.debug("The heartbeat of worker %s ended: it %s", self.label, reason)

    # Life.

    def _advance(self, event: WorkerEvent) -> None:
        self.state = WORKER_TRANSITIONS[self.state, event]

    async def _launch_process(self, token: str) -> None:
        self._tokens = BatchTokens() if self._launch.ahead else None
        start = self._launcher.start
        starting = start(self._launch, self._listener.path, token, self.id, self.label, self._tokens)
        self._launching = asyncio.create_task(starting)
        try:
            self._process = await self._launching
        except asyncio.CancelledError:
            if not self._kill_reason:
                raise
            raise WorkerFailed(500, f"worker {self.label} was not started because {self._kill_reason}") from None
        except OSError as error:
            raise WorkerFailed(500, f"worker {self.label} could not be started: {error}") from error
        for pid in self._ranks.pids.values():
            self._process.adopt(pid)
        in_background(self._reap(self._process), f"awaiting the end of worker {self.label}")
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
        """Wait for the end of the process, and tell it whatever goes wrong: the worker's place would stay empty."""
        reason = "is given up because of an error in the server"
        try:
            reason = await self._end_of(process)
        except BaseException:
            process.kill()
            raise
        finally:
            self._advance("exited" if self.state is WorkerState.STOPPING else "died")
            self.disconnected.set()
            self.ended.set_result(reason)
            if self._watcher is not None:
                self._watcher.cancel()

    async def _end_of(self, process: StartedProcess) -> str:
        """Wait for the end of the process and return its reason; results that it sent before are still taken."""
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
        if self._kill_reason and process.is_lost:
            return f"{reason} ({self._kill_reason})"
        if self._kill_reason:
            return f"was killed by the server because {self._kill_reason}"
        return reason


@dataclass(eq=False)
class Watchdog:
    """Whether one worker still answers; pings its ``ranks``. ``independent``: whether its jobs run independently.

    A worker that runs one batch, or one step, at a time is silent about all its jobs or about none. One that runs its
    jobs independently (asyncCommunication) may answer some while another hangs, so each job is timed. A job about which
    nothing is heard is ended, and the worker is told to drop it. If nothing is heard for the same time again, the job
    is stuck: it holds its place in the worker for nothing. The worker then gets no more jobs, and is killed once its
    other jobs are done, so that its replacement has all places again.

    Silence counts only while this process runs (`net.running_time`): one that was frozen has sent no ping, and
    has not read what its workers said.
    """

    worker: Worker
    ranks: Ranks
    limits: WorkerLimits
    events: WorkerEvents
    independent: bool

    def __post_init__(self) -> None:
        #: When the latest message came; set by the worker.
        self.last_heard = 0.0
        #: When the worker was taken out, because stuck jobs hold places for nothing.
        self._taken_out_at: float | None = None
        self._beat = 0
        #: What the server had lost by standstills at the latest look, and whether the worker was not judged then.
        self._lost = 0.0
        self._is_spared = False

    # Called by the worker.

    def resume(self, now: float) -> None:
        """Messages are received again: what could not be heard while the worker was paused was no silence."""
        self.last_heard = now
        for job in self.worker.in_flight.values():
            if job.heard_at is not None:
                job.heard_at = now

    async def run(self) -> None:
        """Look after the worker until it has ended."""
        clock = running_time()
        while not self.worker.ended.done():
            await asyncio.sleep(min(1.0, min(self.limits.response, self.limits.heartbeat) / _CHECKS_PER_LIMIT))
            try:
                self.look(clock.now(), clock.lost)
            except Exception:
                logger.exception("Worker %s could not be looked after this time", self.worker.label)

    def look(self, now: float, lost: float) -> None:
        """Judge the worker and its jobs, and ping its processes; ``lost`` is that of the clock.

        After a standstill of the server nobody is judged before what came meanwhile is read. But a server that stands
        still again and again judges each second time.
        """
        self._is_spared, self._lost = lost > self._lost and not self._is_spared, lost
        if not self._is_spared:
            if not self.worker.paused:
                self.check(now)
            if self.ranks.silence(now) > self.limits.heartbeat:
                self.worker.kill(f"it answered no ping for {self.limits.heartbeat:g} s")
        self._beat += 1
        self.ranks.ping(encode([messages.PING, self._beat]), now)

    def check(self, now: float) -> None:
        """End what is overdue, and the worker if it is silent."""
        if self.independent:
            self._check_jobs(now)
        sent_or_heard = [job.heard_at for job in self.worker.in_flight.values() if job.heard_at is not None]
        # Where single jobs are ended first, a worker that lives answers their cancellation.
        limit = self.limits.response * (2 if self.independent else 1)
        if sent_or_heard and now - max(self.last_heard, min(sent_or_heard)) > limit:
            self.worker.loss_cause = Cause.response_timeout
            self.worker.kill(f"it gave no response for {limit:g} s")

    def _check_jobs(self, now: float) -> None:
        in_flight, limit = self.worker.in_flight, self.limits.response
        silent = [job for job in in_flight.values() if job.heard_at is not None and now - job.heard_at > limit]
        stuck = [job for job in silent if job.overdue]
        overdue = [job for job in silent if not job.overdue]
        if overdue:
            logger.warning("Worker %s said nothing about %d jobs for too long", self.worker.label, len(overdue))
        for job in overdue:
            job.overdue, job.heard_at = True, now
            self.events.cancel(job, Cause.response_timeout)
        if stuck and self._taken_out_at is None:
            self._taken_out_at = now
            text = "Worker %s gets no more jobs and will be replaced: it does not drop %d jobs that are over"
            logger.warning(text, self.worker.label, len(stuck))
            self.events.take_out(self.worker)
        if self._taken_out_at is not None and (len(in_flight) == len(stuck) or now - self._taken_out_at > limit):
            self.worker.kill(f"it did not drop {len(stuck)} jobs that were over")


class Ranks:
    """The connections of a worker: of its only process, or of each of its ``count`` ranks.

    Rank 0 answers. The others get the model to load and, if ``every_rank``, the same requests in the same order; they
    only send metrics. Without any one of them the worker is lost.
    """

    def __init__(self, count: int, *, every_rank: bool) -> None:
        self.count = count
        self.every_rank = every_rank
        self._jobs: dict[int, WorkerConnection] = {}
        self._heartbeats: dict[int, WorkerConnection] = {}
        #: Since when a ping on a heartbeat has no answer.
        self._pinged: dict[WorkerConnection, float] = {}
        #: The ids of the processes that have connected by rank, as far as the kernel tells them.
        self.pids: dict[int, int] = {}
        self._receivers: tuple[WorkerConnection, ...] = ()

    def attach(self, connection: WorkerConnection, hello: Hello) -> None:
        """Take over a connection. Raises ValueError: its channel or rank is unknown, or connected already."""
        channel, rank = hello["channel"], hello["rank"]
        channels = {messages.JOBS_CHANNEL: self._jobs, messages.HEARTBEAT_CHANNEL: self._heartbeats}
        if channel not in channels or not 0 <= rank < self.count or rank in channels[channel]:
            raise ValueError(f"channel {channel!r} of rank {rank} is unknown or connected already")
        channels[channel][rank] = connection
        if connection.peer_pid is not None:
            self.pids[rank] = connection.peer_pid
        if channel == messages.JOBS_CHANNEL and (self.every_rank or rank == 0):
            self._receivers = (*self._receivers, connection)

    @property
    def complete(self) -> bool:
        """Whether all processes have both their connections."""
        return len(self._jobs) == len(self._heartbeats) == self.count

    def send_request(self, buffers: list[Buffer]) -> None:
        """Send a frame to all that get requests."""
        for connection in self._receivers:
            connection.send(buffers)

    def send_all(self, buffers: list[Buffer]) -> None:
        """Send a frame to all processes."""
        for connection in self._jobs.values():
            connection.send(buffers)

    def cancel(self, buffers: list[Buffer]) -> None:
        """Send a cancellation, unless several processes run the same request.

        They would see it at different moments, and those that continue would wait for those that do not.
        """
        if len(self._receivers) == 1:
            self._receivers[0].send(buffers)

    def ping(self, buffers: list[Buffer], now: float) -> None:
        """Send a frame to all processes' heartbeats, which have to answer it from now on."""
        for connection in self._heartbeats.values():
            self._pinged.setdefault(connection, now)
            connection.send(buffers)

    def heard(self, heartbeat: WorkerConnection) -> None:
        """A process has answered a ping."""
        self._pinged.pop(heartbeat, None)

    def silence(self, now: float) -> float:
        """For how many seconds the most silent process has not answered a ping."""
        return now - min(self._pinged.values(), default=now)

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._jobs.values(), *self._heartbeats.values()):
            connection.close()


class Questions:
    """What one worker was asked and has not answered yet; ``ended`` is done once it is gone.

    Questions are not queued behind the worker's jobs.
    """

    def __init__(self, send: Callable[[list[Buffer]], None], ended: asyncio.Future[Any]) -> None:
        self._send = send
        self._ended = ended
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, kind: str, limit: float, fields: Sequence[Any] = ()) -> Any:
        """Ask; None if the worker goes away, or does not answer within ``limit`` seconds."""
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(encode([kind, number, *fields]))
            await running_time().wait([answer, self._ended], limit)
            return answer.result() if answer.done() else None
        finally:
            del self._open[number]

    def answered(self, number: int, value: Any) -> None:
        """Take an answer; one that comes too late is dropped."""
        answer = self._open.get(number)
        if answer is not None and not answer.done():
            answer.set_result(value)
