"""What an asynchronous runtime is, and what all of them share: the answers' way out, a job's further inputs."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.jobs import device_loss
from ts.protocol.frames import Buffer
from ts.protocol.messages import NO_HISTORIES, EndedSequence, Histories, InferRow, ResultRow


def is_cancelled() -> bool:
    """Return whether the current task was cancelled, as opposed to something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Outbox:
    """Sends all result rows of one turn of the event loop together: one frame costs both ends less than many.

    Args:
        max_size: The largest body in bytes that a row may have.
        take_metrics: Returns the metrics that the model has reported since the last call.
    """

    def __init__(
        self, connection: FrontendConnection, max_size: int, take_metrics: Callable[[], Sequence[list[Any]]] = tuple
    ) -> None:
        self.max_size = max_size
        self._connection = connection
        self._take_metrics = take_metrics
        self._rows: list[ResultRow] = []
        self._size = 0
        self._seconds = 0.0

    def put(self, row: ResultRow, seconds: float) -> None:
        """Queue a row, to be sent at the end of this turn; ``seconds`` is the duration of the job, for its last row."""
        size = len(row.body)
        if self._size + size > self.max_size:
            self.flush()  # the frontend refuses frames that are much larger than the largest row
        if not self._rows:
            asyncio.get_running_loop().call_soon(self.flush)
        self._rows.append(row)
        self._size += size
        self._seconds = max(self._seconds, seconds)

    def flush(self) -> None:
        if self._rows:
            rows, seconds = self._rows, self._seconds
            self._rows, self._size, self._seconds = [], 0, 0.0
            if device_loss.loss.reason:
                device_loss.announce(self._connection)
            self._connection.send_results(rows, seconds, self._take_metrics())
            if device_loss.loss.reason:
                device_loss.end(self._connection)


class FurtherInputs:
    """A job's inputs after its first that the model has not taken; some may arrive before the job's task runs."""

    def __init__(self) -> None:
        self._bodies: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, body: bytes, *, more: bool) -> None:
        """Append an input; an empty one that is the last only ends the stream."""
        if body or more:
            self._bodies.put_nowait(body)
        if not more:
            self.end()

    def end(self) -> None:
        """Let the stream end after the inputs that have arrived."""
        self._bodies.put_nowait(None)

    async def take(self) -> bytes | None:
        """Return the next input as soon as it arrives; None after the last."""
        body = await self._bodies.get()
        if body is None:
            self.end()  # for whoever asks once more
        return body


#: The inputs of a job that has only its first.
NO_INPUTS: Final = FurtherInputs()
NO_INPUTS.end()


class AsyncRuntime(ABC):
    """Runs the jobs of an asynchronous model; the main loop calls `run_job` once per job, in a task of its own.

    Attributes:
        declares: The declarations of the loaded model, see `ts.protocol.messages.Loaded`.
        answers: What answers further questions, by their kind, between two turns of the event loop: messages
            ``[kind, number, …]``.
        is_observed_by_job: Whether the main loop starts each job through observers (`ts.runtime.worker_observer`);
            otherwise the runtime calls the handler through them.
    """

    is_observed_by_job = True

    def __init__(self, declares: Mapping[str, Any]) -> None:
        self.declares = declares
        self.answers: Mapping[str, Callable[..., Any]] = {}

    @abstractmethod
    async def run_job(self, wire_row: InferRow, inputs: FurtherInputs, histories: Histories = NO_HISTORIES) -> None:
        """Run the model for one job and send all of its answers, unless the frontend cancels the job, and so this.

        ``histories`` are those of the frame that the job came with, see `ts.protocol.messages.InferFrame`.
        The runtime sends `TAKEN` for each of the further inputs that the model has consumed. Any other exception is a
        defect of the runtime and ends the worker.
        """

    def cancel_job(self, job_id: str, task: asyncio.Task[None]) -> None:
        """Cancel the task of a job. A runtime that tells the model in another way has the task answer the job."""
        task.cancel()

    def called(self, number: int, answer: list[Any]) -> None:
        """Take what came of a call of another model. Raises ValueError: the model makes none."""
        raise ValueError(f"the frontend answers call {number}, which was not made")

    def add_state(self, sequence_id: str, piece: Buffer) -> None:
        """Take a piece of a sequence that another worker gives. Raises ValueError: the model takes none."""
        raise ValueError(f"the frontend sends a state of {sequence_id!r}, which was not asked for")

    async def is_healthy(self) -> bool:
        """Return whether the model reports that it can serve."""
        return True

    async def expose_metrics(self) -> bytes:
        """Return the metrics that the model's own code maintains, in Prometheus' text format."""
        return b""

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:  # noqa: B027 - few models need it
        """Notify the model that sequences have ended."""

    async def close(self) -> None:  # noqa: B027 - few models need it
        """Release the model's resources; the main loop calls this after the last answer, before the process ends."""
