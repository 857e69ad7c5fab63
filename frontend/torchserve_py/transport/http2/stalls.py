"""Gives up calls and connections whose clients have stopped sending or reading, or nearly so.

Each connection is checked once per interval, without a timer per call: a call without progress between two checks has
stalled for one to two intervals. Progress must reach a minimum rate; otherwise an occasional byte would keep a call
open for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from torchserve_py.transport.unsent import unsent_size

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call
    from torchserve_py.transport.http2.http2_connection import Http2Connection

#: Bytes per second at which requests must arrive and answers must be read; the same as for HTTP/1.1 bodies.
_LEAST_RATE: Final = 500.0


class Progress(NamedTuple):
    """The bytes and complete messages that a call has received, and the bytes that it has sent, so far.

    ``awaits``: whether the call waits for the rest of a message; ``pending``: bytes that wait for the client's window.
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
    """Watches one connection; aborts it if output does not leave, or if a frame stays incomplete."""

    def __init__(self, connection: Http2Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._interval = connection.server.limits.stall
        #: The bytes that had not arrived at the client when its connection was last seen to wait for that.
        self.unsent: int | None = None
        self._unit: int | None = None
        self._seen: dict[Call, Progress] = {}
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        connection, reader = self._connection, self._connection.reader
        least = _LEAST_RATE * self._interval
        waits = self._transport.is_closing() or not connection.sender.writable
        unsent = unsent_size(self._transport) if waits else None
        stands = unsent is not None and self.unsent is not None and self.unsent - unsent < least
        unit = reader.units if reader.is_midway else None
        if stands or (unit is not None and unit == self._unit):
            self._transport.abort()
            return
        self.unsent, self._unit = unsent, unit
        before = self._seen
        self._seen = {call: call.progress for call in connection.calls.values()}
        for stream_id, call in tuple(connection.calls.items()):
            seen = before.get(call)
            if seen is not None and seen.stalls(self._seen[call], least):
                connection.reset(stream_id)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
