"""Receives the rest of a large body straight into the memory of the body, without a copy in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchserve_py.transport.http1.http_connection import HttpConnection
    from torchserve_py.transport.http1.request import Request

#: The size of the memory for unwanted bytes: the request was answered, or its body has failed.
_UNWANTED: Final = 64 * 1024


class BodyReceiver(asyncio.BufferedProtocol):
    """The transport's protocol while the rest of a body arrives; afterwards the connection is the protocol again."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport, request: Request) -> None:
        self._connection = connection
        self._transport = transport
        self._request = request
        self._unwanted: bytearray | None = None

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        """Return the memory for the bytes that come next."""
        room = self._request.room()
        if room is None:
            self._unwanted = bytearray(_UNWANTED)
            return self._unwanted
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were written to the memory."""
        if self._unwanted is not None:
            self._transport.set_protocol(self._connection)
            self._connection.data_received(bytes(self._unwanted[:nbytes]))
            return
        self._request.filled(nbytes)
        if self._request.missing_size:
            self._connection.received_of_body(self._request)
        else:  # the transport still uses the memory of the body
            self._connection.set_reading(False)
            self._connection.loop.call_soon(self._end)

    def _end(self) -> None:
        if self._connection.is_connected:
            self._transport.set_protocol(self._connection)
            self._connection.set_reading(True)
            self._connection.received_of_body(self._request)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
