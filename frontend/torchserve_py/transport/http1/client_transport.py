"""What a connection does with its transport, which may be closed or gone at any time."""

import asyncio
import socket
import struct
from typing import Final

from torchserve_py.transport.http1.request import Buffer
from torchserve_py.transport.unsent import unsent_size

_NO_LINGERING: Final = struct.pack("ii", 1, 0)


class ClientTransport(asyncio.Protocol):
    """The transport of one client; without one, nothing is done."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._is_reading = True

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, *pieces: Buffer) -> None:
        """Send bytes; do nothing once the client has disconnected."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(pieces[0]) if len(pieces) == 1 else transport.writelines(pieces)

    @property
    def unread_size(self) -> int:
        """Bytes that were written and have not arrived at the client."""
        return 0 if self._transport is None else unsent_size(self._transport)

    def abort(self) -> None:
        """Close the connection at once, and drop unsent output."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close the connection at once, so that the client sees an error instead of an orderly end."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        self._transport.abort()

    def set_reading(self, reading: bool) -> None:
        transport = self._transport
        if reading is self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = reading
        (transport.resume_reading if reading else transport.pause_reading)()
