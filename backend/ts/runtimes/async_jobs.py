"""What the asynchronous runtimes share: the answers' way out, a job's further inputs, and cancellation."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from ts import device_loss
from ts.frontend_connection import Connection
from ts.protocol.messages import ResultRow


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
        self, connection: Connection, max_size: int, take_metrics: Callable[[], Sequence[list[Any]]] = tuple
    ) -> None:
        self.max_size = max_size
        self._connection = connection
        self._take_metrics = take_metrics
        self._rows: list[ResultRow] = []
        self._size = 0
        self._seconds = 0.0

    def put(self, row: ResultRow, seconds: float) -> None:
        """Queue a row, to be sent at the end of this turn; ``seconds`` is the duration of the job, for its last row."""
        size = len(row[5])
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
            device_loss.announce(self._connection)
            self._connection.send_results(rows, seconds, self._take_metrics())
            device_loss.end_if_lost(self._connection)


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
