"""Collects the answers of asynchronous jobs and sends them to the frontend in few frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ts import device_loss
from ts.connection import Connection
from ts.protocol.messages import ResultRow


def _no_metrics() -> Sequence[list[Any]]:
    return ()


class Outbox:
    """Sends all result rows of one turn of the event loop together: one frame costs both ends less than many.

    Args:
        max_size: The largest body in bytes that a row may have.
        take_metrics: Returns the metrics that the model has reported since the last call.
    """

    def __init__(
        self,
        connection: Connection,
        max_size: int,
        take_metrics: Callable[[], Sequence[list[Any]]] = _no_metrics,
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
        """Send the queued rows now."""
        if self._rows:
            rows, seconds = self._rows, self._seconds
            self._rows, self._size, self._seconds = [], 0, 0.0
            device_loss.announce(self._connection)
            self._connection.send_results(rows, seconds, self._take_metrics())
            device_loss.end_if_lost()
