"""A worker process, and the frontend's end of it. The process runs the worker's real loop, runtime and store."""

import asyncio
import contextlib
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.simulation.model import simulated_words
from tests.simulation.world import Process, World

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.jobs.batch_encoding import encode_batch
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import part_of
from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.lifecycle import WorkerLimits
from torchserve_py.core.workers.worker import Questions, Ranks, Watchdog
from torchserve_py.net.running_time import running_time
from ts.connection.batch_claims import BatchClaims
from ts.connection.frontend_connection import FrontendGone
from ts.jobs.errors import LoadError
from ts.jobs.sequence_steps import StoreReports
from ts.process import worker as real_worker
from ts.protocol.frames import Buffer, FrameBuffer, encode
from ts.protocol.messages import (
    ANSWER,
    CANCEL,
    END_SEQUENCE,
    HEARTBEAT_CHANNEL,
    JOBS_CHANNEL,
    LEAVING,
    PONG,
    RESULTS,
    STATE,
    STOP,
    WANTED,
    Hello,
    ResultRow,
    encode_results,
)
from ts.runtime.loader import load_service
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.sequences.steps.stores.store import StoreError, Watch

#: How long a message takes from one process of a machine to another (seconds), at most.
_PASSAGE: Final = 0.001
#: How many pieces of states take up to a second.
_SLOW_STATES: Final = 0.4
#: A worker that says nothing about its jobs for so long, or answers no ping, is killed (seconds).
LIMITS: Final = WorkerLimits(connect=60.0, load=60.0, response=60.0, stop=20.0, heartbeat=45.0)
#: How often the watchdog of a worker that has jobs looks after it (seconds).
_LOOK_INTERVAL: Final = 5.0
#: The model's folder and its handler, which is imported already.
MODEL_FOLDER: Final = str(Path(simulated_words.__file__).parent)
HANDLER: Final = Path(simulated_words.__file__).name
sys.modules[Path(HANDLER).stem] = simulated_words


class Pipe:
    """Carries frames from one process to another, in order; what was sent before the sender died still arrives."""

    peer_pid = None

    def __init__(
        self,
        world: World,
        to: Process,
        take: Callable[[list[Any]], None],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._world, self._to, self._take, self._end = world, to, take, end
        self._buffer = FrameBuffer()
        self._last = 0.0

    def send(self, frame: Sequence[Buffer]) -> None:
        """Send the buffers of frames."""
        if not self._world.current.is_dead:
            self._soon(self._arrive, b"".join(frame))

    def close(self) -> None:
        """Tell the receiver that nothing more comes."""
        self._soon(self._end)

    def _soon(self, call: Callable[..., None], *given: Any) -> None:
        self._last = max(self._last, self._world.now + self._world.random.uniform(0.0, _PASSAGE))
        self._to.after(self._last - self._world.now, call, *given)

    def _arrive(self, sent: bytes) -> None:
        while sent:
            memory = self._buffer.writable()
            count = min(len(memory), len(sent))
            memory[:count] = sent[:count]
            self._buffer.received(count)
            sent = sent[count:]
        for message in self._buffer.messages():
            self._take(message)


class PipeConnection:
    """The worker's end of its connection: what `frontend_connection.FrontendConnection` is to the worker's loop."""

    is_plain = True

    def __init__(self, process: Process) -> None:
        self.cancelled: set[str] = set()
        self._messages: deque[list[Any]] = deque()
        self._process, self._world = process, process.world
        self._is_over = False
        self._continue: Callable[[], None] | None = None
        self.to_frontend: Pipe

    def take(self, message: list[Any]) -> None:
        """A message has arrived."""
        if message[0] == CANCEL:
            self.cancelled.update(message[1])
        else:
            self._messages.append(message)
        self._wake()

    def end(self) -> None:
        """The frontend has closed the connection."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._continue is not None:
            self._process.soon(self._continue)
            self._continue = None

    def receive(self, *, wait: bool) -> list[Any] | None:
        while not self._messages:
            if self._is_over:
                raise FrontendGone(0)
            if not wait:
                return None
            self.cancelled.clear()
            self._continue = self._world.here()
            self._world.wait()
        return self._messages.popleft()

    def look(self) -> None:
        """All that has arrived is known."""

    @property
    def has_more(self) -> bool:
        return bool(self._messages)

    def send(self, message: list[Any]) -> None:
        if self._world.random.random() < _SLOW_STATES:
            self._world.sleep(self._world.random.random())
        self._world.point("before a message")
        self.to_frontend.send(encode(message))
        self._world.point("after a message")

    def send_results(self, rows: Sequence[ResultRow], seconds: float, metrics: Sequence[list[Any]] = ()) -> None:
        self._world.point("before an answer")
        self.to_frontend.send(encode_results(rows, seconds))
        self._world.point("after an answer")

    def step_begins(self) -> None:
        """No threads move bytes here, so nothing is measured."""

    def step_ended(self) -> None:
        """As for `step_begins`."""

    def flush(self) -> None:
        """All that was sent is on its way."""


class CommitThread:
    """The thread that commits: what `sequence_steps.commit_thread.CommitThread` is to a worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_done = True
        self._continue: Callable[[], None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        process = self._world.current
        self._is_done = False

        def run() -> None:
            work()
            self._is_done = True
            if self._continue is not None:
                process.soon(self._continue)
                self._continue = None

        process.run_blocking(run)

    def wait(self) -> None:
        self._world.point("before the end of a commit")
        while not self._is_done:
            self._continue = self._world.here()
            self._world.wait()


class CommitOverlap:
    """Whether that thread pays, which is measured elsewhere; see `sequence_steps.commit_thread.CommitOverlap`."""

    def __init__(self, *, pays: bool) -> None:
        self.pays = pays

    def ran(self, began: float, ended: float, *, is_followed: bool) -> None:
        """The handler has run."""

    def committed(self, seconds: float) -> None:
        """A batch was committed."""


class WatchThread:
    """The thread that hears what other servers ask for: what `watch_thread.WatchThread` is to a worker."""

    def __init__(self, world: World, watch: Watch, tell: Callable[[Sequence[str]], None]) -> None:
        self._world, self._watch, self._tell = world, watch, tell
        self._is_closed = False
        world.current.run_blocking(self._run)
        world.current.on_death.append(self._drop)

    def _drop(self) -> None:
        """Close the sockets of a process that is dead."""
        for each in vars(self._watch).values():
            if isinstance(each, socket.socket):
                each.close()

    def close(self) -> None:
        self._is_closed = True
        self._watch.close()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                if wanted := self._watch.wait():
                    self._tell(wanted)
            except StoreError:
                self._world.sleep(1.0)


class WorkerEnd:
    """The frontend's end of a worker: what `torchserve_py.core.workers.worker.Worker` is to a dispatcher."""

    def __init__(
        self, worker_id: str, process: Process, dispatcher: Dispatcher, frontend: Process, *, hands_over: bool
    ) -> None:
        self.id = self.label = worker_id
        self.process = process
        self.sent_at, self.paused, self.hands_over, self.takes_ahead = 0.0, False, hands_over, True
        self.loss_cause, self.left_unread = Cause.worker_died, False
        self.tokens = BatchTokens()
        self._dispatcher, self._frontend = dispatcher, frontend
        self._clock = running_time()
        self._ranks = Ranks(1, every_rank=False)
        self._watchdog = Watchdog(self, self._ranks, LIMITS, dispatcher, independent=False)  # type: ignore[arg-type]
        self._is_watched = False
        loop = asyncio.get_running_loop()
        #: Whether it has come up, once that is known, and how it has ended.
        self.loaded: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        #: Take the pieces of what it was asked to give, by the numbers of the moves.
        self.relays: dict[int, Callable[[bytes], None]] = {}
        self._questions = Questions(self._ranks.send_request, self.ended)
        #: Called once the worker is gone.
        self.on_loss: Callable[[], None] = lambda: None

    def connected(self, jobs: "Pipe", heartbeat: "Pipe") -> None:
        """The worker has connected; these carry messages to it."""
        self._heartbeat = heartbeat
        for channel, pipe in ((JOBS_CHANNEL, jobs), (HEARTBEAT_CHANNEL, heartbeat)):
            self._ranks.attach(pipe, Hello(token="", channel=channel, rank=0))  # type: ignore[arg-type]

    @property
    def ready(self) -> bool:
        """Whether it takes jobs."""
        return self.loaded.done() and not self.ended.done()

    @property
    def in_flight(self) -> Mapping[str, Call]:
        return self._dispatcher.jobs_of(self)  # type: ignore[arg-type]

    def send(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None) -> None:
        self._ranks.send_request(encode_batch(jobs, moment_of))

    def send_ahead(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None, *, joins: bool) -> None:
        pipe = self.tokens.pipe_of(joins=joins)
        self.tokens.add(pipe)
        self._ranks.send_request(encode_batch(jobs, moment_of, (pipe, joins)))

    def take_back(self) -> int:
        return self.tokens.take_back()

    def begin(self, now: float) -> None:
        self.sent_at = now
        self._watch()

    def cancel(self, job_ids: Sequence[str]) -> None:
        self._ranks.cancel(encode([CANCEL, list(job_ids)]))

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        self._ranks.send_request(encode([END_SEQUENCE, [(sequence_id, reason, moment)]]))

    async def ask(self, kind: str, limit: float, *fields: Any) -> Any:
        return await self._questions.ask(kind, limit, fields) if self.ready else None

    def send_state(self, sequence_id: str, piece: Buffer) -> None:
        self._ranks.send_request(encode([STATE, sequence_id, piece], large=True))

    def stop(self) -> None:
        """Ask the process to end once it has answered its jobs."""
        self._ranks.send_all(encode([STOP]))

    def pause(self) -> None:
        raise AssertionError("nobody reads slowly here")

    resume = pause

    def take(self, message: list[Any]) -> None:
        """A message of the worker has arrived."""
        self._watchdog.last_heard = heard_at = self._clock.now()
        if message[0] == RESULTS:
            parts = [part_of(row) for row in message[1]]
            self._dispatcher.results(self, parts, message[2], heard_at)  # type: ignore[arg-type]
        elif message[0] == LEAVING:
            self._dispatcher.take_out(self)  # type: ignore[arg-type]
        elif message[0] == STATE:
            if (relay := self.relays.get(message[1])) is not None:
                relay(message[2])
        elif message[0] == ANSWER:
            self._questions.answered(message[1], message[2])

    def beat(self, message: list[Any]) -> None:
        """A message has arrived on the heartbeat."""
        if message[0] == PONG:
            self._ranks.heard(self._heartbeat)  # type: ignore[arg-type]
        else:
            self._dispatcher.wanted(self, message[1])  # type: ignore[arg-type]

    def up(self) -> None:
        """The worker's process has loaded the model."""
        self._dispatcher.worker_up(self)  # type: ignore[arg-type]
        self.loaded.set_result(True)

    def lost(self) -> None:
        """The worker's process is gone."""
        self._dispatcher.worker_lost(self)  # type: ignore[arg-type]
        self.ended.set_result("was killed")
        if not self.loaded.done():
            self.loaded.set_result(False)
        self.on_loss()

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self.process.world.history.note(self.process.world.now, self.process.name, f"killed because {reason}")
        self.process.kill()

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._frontend.after(_LOOK_INTERVAL, self._look)

    def _look(self) -> None:
        """Let the watchdog look after a worker that has jobs; it would find nothing else."""
        self._is_watched = False
        if self.in_flight and not self.process.is_dead:
            self._watchdog.look(self._clock.now(), self._clock.lost)
            self._watch()


def start_worker(
    worker_id: str, process: Process, frontend: Process, dispatcher: Dispatcher, load: Mapping[str, Any]
) -> WorkerEnd:
    """Start a worker; the dispatcher is told once it is up, and when it is gone."""
    world = process.world
    with world.running(frontend):
        in_memory = not load["cache"]["durable"]
        end = WorkerEnd(worker_id, process, dispatcher, frontend, hands_over=in_memory)
        connection = PipeConnection(process)
    connection.to_frontend = Pipe(world, frontend, end.take, end.lost)
    heartbeat = Pipe(world, frontend, end.beat)

    def answer_ping(message: list[Any]) -> None:
        heartbeat.send(encode([PONG, message[1]]))

    def tell_wanted(wanted: Sequence[str]) -> None:
        heartbeat.send(encode([WANTED, list(wanted)]))

    end.connected(Pipe(world, process, connection.take, connection.end), Pipe(world, process, answer_ping))

    def run() -> None:
        found = [*sys.path]
        try:
            service = load_service(load)  # type: ignore[arg-type]
        except LoadError as error:  # the store cannot be opened; the next worker tries again
            world.history.note(world.now, process.name, f"could not load: {error}")
            process.kill()
            return
        finally:
            sys.path[:] = found
        runtime = TorchServeHandler(
            service,
            connection,  # type: ignore[arg-type]
            load,  # type: ignore[arg-type]
            claims=BatchClaims(",".join(map(str, end.tokens.worker_ends))),
        )
        if service.steps is not None:
            service.steps.listen(tell_wanted, StoreReports())
            runtime.answers |= service.steps.hand_over(connection.send, load["cache"]["most_state"])
        frontend.soon(end.up)
        with contextlib.suppress(FrontendGone):
            real_worker.serve(connection, runtime)  # type: ignore[arg-type]
        process.kill()

    process.on_death += [connection.to_frontend.close, end.tokens.close]
    process.run_blocking(run)
    return end
