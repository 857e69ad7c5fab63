"""A model as its clients meet it: the server's dispatcher and a worker over a store, without processes and sockets.

The rules of steps are kept by both together: the worker judges steps, the scheduler remembers what is over where no
store does. A test that goes through both says what every store has to keep.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from tests.sequences.steps.stepping import step
from tests.unit.ts.frontend_stub import Worker

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.jobs.batch_encoding import encode_batch
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import JobFailed, part_of
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.workers import worker as frontend_worker
from torchserve_py.net.running_time import running_time
from ts.protocol.frames import FrameBuffer
from ts.protocol.messages import ANSWER_TOKEN, EndedSequence, decode_infer

_WAIT = 5.0


class _Process:
    """The frontend's end of a worker that runs in the test itself, when it is told to."""

    def __init__(self, worker_id: str, worker: Worker, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self.id, self.worker, self.dispatcher = worker_id, worker, dispatcher
        self.sent_at, self.paused, self.hands_over, self.left_unread = 0.0, False, False, False
        self.loss_cause = Cause.worker_died
        self.ended: asyncio.Future[str] = loop.create_future()
        self.ended.set_result("was killed by SIGKILL")
        self._ended: list[EndedSequence] = []

    def send(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None) -> None:
        buffer = FrameBuffer()
        frame = b"".join(encode_batch(jobs, moment_of))
        view = memoryview(frame)
        while view:
            room = buffer.writable()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            buffer.received(count)
            view = view[count:]
        self._pass_on_ends()
        for message in buffer.messages():
            self.worker.runtime.admit(decode_infer(*message[1:]))

    def begin(self, now: float) -> None:
        """The watchdog is not part of this."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.worker.connection.cancelled.update(job_ids)

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        self._ended.append(EndedSequence(sequence_id, reason, moment))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def _pass_on_ends(self) -> None:
        ended, self._ended = self._ended, []
        if ended:
            self.worker.runtime.end_sequences(ended)

    def step(self) -> None:
        """Let the worker run one step, and the server hear of it."""
        self._pass_on_ends()
        self.worker.runtime.step()
        for message in self.worker.peer.arrived():
            if message[0] == "results":
                parts = [part_of(row) for row in message[1]]
                self.dispatcher.results(
                    cast(frontend_worker.Worker, self), parts, message[2] or 1e-6, running_time().now()
                )
        self._pass_on_ends()


class Served:
    """One version of a model with one worker.

    Args:
        make: Makes a worker over the same store.
        durable: Whether that outlives its workers.
    """

    def __init__(
        self,
        make: Callable[[], Worker],
        *,
        durable: bool,
        continuous: bool = False,
        batch_size: int = 1,
        require_start: bool = False,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self._make, self._numbers, self._jobs = make, itertools.count(), itertools.count()
        sequences = SequencePolicy(600.0, queue_size=5, max_sequences=100, durable=durable, require_start=require_start)
        self.metrics = ServerMetrics()

        async def dispatcher() -> Dispatcher:
            policy = Policy(batch_size=batch_size, continuous=continuous, sequences=sequences)
            model = self.metrics.model("m", "1.0")
            return Dispatcher(policy, model, stream_buffer_size=1 << 20, record_model_metrics=lambda records: None)

        self.dispatcher = self.loop.run_until_complete(dispatcher())
        self.process = self._start()

    def _start(self) -> _Process:
        process = _Process(f"w{next(self._numbers)}", self._make(), self.dispatcher, self.loop)
        self._run(lambda: self.dispatcher.set_workers(1))
        self._run(lambda: self.dispatcher.worker_up(cast(frontend_worker.Worker, process)))
        return process

    def replace_worker(self) -> None:
        """The worker dies, and another one takes its place."""
        dead = self.process
        self._run(lambda: self.dispatcher.worker_lost(cast(frontend_worker.Worker, dead)))
        self.process = self._start()

    def submit(
        self,
        sequence_id: str,
        body: str,
        *,
        start: bool = False,
        end: bool = False,
        number: int = 0,
        token: str = "",
        **claims: Any,
    ) -> Call:
        """Send a step, and do not wait for its answer."""
        row = step("", sequence_id, body, start=start, end=end, number=number, token=token, **claims)
        return self.submit_row(row, sequence_id, start=start, end=end, number=number, token=token)

    def submit_row(
        self, row: Any, sequence_id: str, *, start: bool = False, end: bool = False, number: int = 0, token: str = ""
    ) -> Call:
        """Send a step with the body and the headers of this row."""
        named = SequenceRequest(sequence_id, start, end, (), number or None, token or None)
        call = Call(row.headers, row.body, row.content_type, sequence=named)
        self._run(lambda: self.dispatcher.submit(call))
        return call

    def step(self) -> None:
        """Let the worker run one step."""
        self._run(self.process.step)

    def say(self, sequence_id: str, body: str, **claims: Any) -> Any:
        """Send a step; return what it is told, as `told` does."""
        parts = self.submit(sequence_id, body, **claims)
        self.step()
        return self.told(parts)

    def told(self, parts: Call) -> Any:
        """Return the whole body of an answer that is there, the cause of a refusal, or the status of another error."""

        async def read() -> Any:
            body = b""
            while True:
                part = await asyncio.wait_for(parts.next(), _WAIT)
                if part.error is not None:
                    return part.status
                body += part.body
                if not part.more:
                    return body.decode()

        try:
            return self.loop.run_until_complete(read())
        except JobFailed as failed:
            return failed.cause.value

    def token(self, sequence_id: str, body: str, **claims: Any) -> str:
        """Send a step; return the token that its answer tells."""
        return dict(self.headers(sequence_id, body, **claims))[ANSWER_TOKEN]

    def headers(self, sequence_id: str, body: str, **claims: Any) -> list[tuple[str, str]]:
        """Send a step; return the headers of its answer."""
        parts = self.submit(sequence_id, body, **claims)
        self.step()

        async def read() -> list[tuple[str, str]]:
            return [(name, value) for name, value in (await asyncio.wait_for(parts.next(), _WAIT)).headers]

        return self.loop.run_until_complete(read())

    def part(self, parts: Call) -> str:
        """Return the next part of an answer."""

        async def read() -> str:
            return bytes((await asyncio.wait_for(parts.next(), _WAIT)).body).decode()

        return self.loop.run_until_complete(read())

    def close_sequence(self, sequence_id: str) -> None:
        """The sequence ends here for a reason of the server."""
        self._run(lambda: self.dispatcher.close_sequence(sequence_id, keep_stored=False))

    @property
    def open(self) -> set[str]:
        """The ids of the sequences that are open at the server."""
        return {each.id for each in self.dispatcher.scheduler.sequences()}

    def _run(self, action: Callable[[], Any]) -> Any:
        async def act() -> Any:
            return action()

        return self.loop.run_until_complete(act())

    def close(self) -> None:
        self.loop.close()
