"""Clients that have stopped: what waits for nobody but them is given up.

One look per interval for a whole connection, and no timer per call: whatever is found twice as it was has stood still
for a whole interval, and for less than two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from torchserve_py.transport.http2.call import Call


class Stalls:
    """Watches over one connection.

    Args:
        transport: Where bytes leave; it is aborted if they do not.
        calls: Those that are open, by stream.
        end: Called with the stream of a call that stands still.
        interval: Seconds.
    """

    def __init__(
        self, transport: asyncio.Transport, calls: Mapping[int, Call], end: Callable[[int], None], interval: float
    ) -> None:
        self._transport = transport
        self._calls = calls
        self._end = end
        self._interval = interval
        self._paused = False
        self._stood = False
        self._seen: dict[Call, tuple[int, ...]] = {}
        self._timer = asyncio.get_running_loop().call_later(interval, self._look)

    def pause(self) -> None:
        """The client reads more slowly than it is written to."""
        self._paused = True

    def resume(self) -> None:
        """It has caught up."""
        self._paused = self._stood = False

    def cancel(self) -> None:
        """The connection is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        stands = self._paused or self._transport.is_closing()
        if stands and self._stood:
            self._transport.abort()
            return
        self._stood = stands
        before = self._seen
        self._seen = {call: call.progress for call in self._calls.values() if call.waits_for_client}
        for call, progress in self._seen.items():
            if before.get(call) == progress:
                self._end(call.stream.id)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
