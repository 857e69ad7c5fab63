"""Gives up calls and connections whose clients have stopped sending or reading, or nearly so.

Each connection is checked once per interval, without a timer per call: a call without progress between two checks has
stalled for one to two intervals. Progress must reach a minimum rate; otherwise an occasional byte would keep a call
open for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from torchserve_py.transport.http2.frame_reader import FrameReader
from torchserve_py.transport.unsent import unsent_size

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call

#: Bytes per second at which requests must arrive and answers must be read; the same as for HTTP/1.1 bodies.
_LEAST_RATE: Final = 500.0


class Progress(NamedTuple):
    """The progress of a call.

    Attributes:
        awaits: Whether the call waits for the rest of a message from the client.
        received: Bytes received so far.
        messages: Complete messages so far.
        pending: Bytes that wait for the client's flow-control window.
        sent: Bytes sent so far.
    """

    awaits: bool
    received: int
    messages: int
    pending: int
    sent: int

    def stalls(self, now: Progress, least: float) -> bool:
        """Return whether the client has since sent or read fewer than ``least`` bytes that the call waits for."""
        if self.awaits and now.awaits and now.messages == self.messages and now.received - self.received < least:
            return True
        return bool(now.pending and self.pending) and now.sent - self.sent < min(self.pending, least)


class Stalls:
    """Watches one connection.

    Args:
        transport: The transport; it is aborted if output does not leave, or if a frame stays incomplete.
        reader: Reads the client's frames.
        calls: The open calls by stream.
        end: Called with the stream of a stalled call.
        interval: Seconds between two checks.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: FrameReader,
        calls: Mapping[int, Call],
        end: Callable[[int], None],
        interval: float,
    ) -> None:
        self._transport = transport
        self._reader = reader
        self._calls = calls
        self._end = end
        self._interval = interval
        self._paused = False
        #: The bytes that had not arrived at the client when its connection was last seen to wait for that.
        self._unsent: int | None = None
        self._unit: int | None = None
        self._seen: dict[Call, Progress] = {}
        self._timer = asyncio.get_running_loop().call_later(interval, self._look)

    def pause(self) -> None:
        """Note that the client reads more slowly than the server writes."""
        self._paused = True

    def resume(self) -> None:
        """Note that the client has caught up."""
        self._paused, self._unsent = False, None

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        least = _LEAST_RATE * self._interval
        waits = self._paused or self._transport.is_closing()
        unsent = unsent_size(self._transport) if waits else None
        stands = unsent is not None and self._unsent is not None and self._unsent - unsent < least
        unit = self._reader.units if self._reader.is_midway else None
        if stands or (unit is not None and unit == self._unit):
            self._transport.abort()
            return
        self._unsent, self._unit = unsent, unit
        before = self._seen
        self._seen = {call: call.progress for call in self._calls.values()}
        for stream_id, call in tuple(self._calls.items()):
            seen = before.get(call)
            if seen is not None and seen.stalls(self._seen[call], least):
                self._end(stream_id)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
