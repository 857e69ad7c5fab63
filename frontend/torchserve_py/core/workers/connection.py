"""The frontend's end of one socket connection to a worker process: frames in, frames out.

Whatever a worker sends, the requests of others go on: its messages are handled for a moment in each turn of the event
loop, and nothing more is received meanwhile, so that a worker which sends too much waits itself.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, Final, cast

from torchserve_py.net.turns import running_turns
from ts.protocol.frames import MAX_FRAME, SEND_BUFFER, Buffer, FrameBuffer, FrameError

logger = logging.getLogger(__name__)

#: A single message may take longer than a connection's share of a turn of the event loop. After one that took longer
#: than this (seconds of the processor, so that other work of the machine does not count) the connection rests, for so
#: many times as long as that took: so a worker never has more than a fifth of the loop with messages that are expensive
#: to read.
_SLOW_MESSAGE_SECONDS = 0.02
_REST = 4
#: But no longer than this (seconds).
_LONGEST_REST = 1.0
#: ``struct ucred`` of Linux: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")
#: macOS, <sys/un.h>: the level ``SOL_LOCAL`` and the option ``LOCAL_PEERPID``.
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2
_INT: Final = struct.Struct("i")


def _do_nothing() -> None:
    pass


class WorkerConnection(asyncio.BufferedProtocol):
    """Receives straight into the frame buffer and calls ``on_message`` for every message, ``on_close`` once at the end.

    Both are the listener's until a worker has said hello, then the `Worker`'s. ``on_handled`` is called when the
    messages that had come together were handled, or as many of them as there was time for.

    It calls ``on_open`` before the first message, with TLS after the handshake; if that fails it calls nothing. A peer
    that sends what is no message loses the connection; ``on_close`` then gets the error.
    """

    def __init__(
        self,
        on_message: Callable[[WorkerConnection, list[Any]], None],
        on_close: Callable[[WorkerConnection, str], None],
        max_frame: int = MAX_FRAME,
        on_open: Callable[[WorkerConnection], None] = lambda connection: None,
    ) -> None:
        self._on_open = on_open
        self.on_message = on_message
        self.on_close = on_close
        self.on_handled: Callable[[], None] = _do_nothing
        self._frames = FrameBuffer(max_frame)
        self._turns = running_turns()
        #: Who is at the other end, for the log.
        self.peer = "a process that has not said who it is"
        #: The id of the process at the other end, as the kernel tells it; None where it does not.
        self.peer_pid: int | None = None
        #: What is known of the peer's certificate; None on a Unix socket.
        self.tls: ssl.SSLObject | None = None
        #: Whether the peer is gone, and has not read what was sent last; False where the system does not tell it.
        self.left_unread = False
        self._transport: asyncio.Transport | None = None
        self._error = ""
        #: Whether its owner wants nothing at present; whether messages are here that have to wait for the next turn.
        self._paused = self._behind = False
        #: Whether its owner has closed it: what waits is of no interest any more.
        self._dropped = False
        #: How the connection ended while messages were waiting; they are handled before that is told.
        self._lost: str | None = None

    def limit_frames(self, max_frame: int, max_values: int) -> None:
        """Refuse frames of more bytes or values from now on; called between two messages."""
        self._frames.limit(max_frame, max_values)

    def send(self, buffers: list[Buffer]) -> None:
        """Write one frame; does nothing once the connection is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self.left_unread = True
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    def close(self) -> None:
        """Close without waiting for what is still to be written."""
        if self._transport is not None:
            self._dropped, self._behind = True, False
            self._transport.abort()

    def pause(self) -> None:
        """Stop receiving: the worker blocks once the socket's buffer is full."""
        self._paused = True
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Receive again."""
        self._paused = False
        if not self._behind:
            self._receive()

    def _receive(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    # asyncio calls the following.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.tls = transport.get_extra_info("ssl_object")
        if self.tls is None:
            self.peer_pid = _peer_pid(connected)
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.received(nbytes)
        if not self._behind:
            self._handle()

    def _handle(self) -> None:
        """Handle the messages that are here, for a moment; the rest waits for the next turn."""
        end, begun, is_late = self._turns.end_of_slice(), time.thread_time(), False
        try:
            try:
                for message in self._frames.messages():
                    self.on_message(self, message)
                    if time.monotonic() > end:
                        is_late = True
                        break
            finally:
                self.on_handled()
        except Exception as error:  # any error concerns this peer alone
            self._error = f"sent a malformed message: {error or type(error).__name__}"
            trace = None if isinstance(error, FrameError) else error
            logger.error("The connection of %s is closed: it %s", self.peer, self._error, exc_info=trace)
            self.close()
            return
        if is_late:
            took = time.thread_time() - begun
            self._fall_behind(min(took * _REST, _LONGEST_REST) if took > _SLOW_MESSAGE_SECONDS else 0.0)

    def _fall_behind(self, rest: float) -> None:
        if self._transport is None or self._dropped:
            return
        self._behind = True
        if self._transport.is_reading():
            self._transport.pause_reading()
        if rest:
            asyncio.get_running_loop().call_later(rest, self._catch_up)
        else:
            self._turns.put_off(self._catch_up)

    def _catch_up(self) -> None:
        """Another turn has come."""
        if not self._behind:
            return
        self._behind = False
        self._handle()
        if self._behind:
            return
        if self._lost is not None:
            self.on_close(self, self._error or self._lost)
        elif not self._paused:
            self._receive()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        # A Unix socket is reset by the end of a process that has left something unread, a network's by more than that.
        if self.tls is None and isinstance(exc, (ConnectionResetError, BrokenPipeError)):
            self.left_unread = True
        reason = str(exc) if exc else "closed the connection"
        if self._behind:
            self._lost = reason
        else:
            self.on_close(self, self._error or reason)


def token_of(tls: ssl.SSLObject) -> str:
    """Return the token that the verified certificate of a peer names.

    Raises ValueError: it names none.
    """
    certificate: Any = tls.getpeercert() or {}
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    if not names:
        raise ValueError("the certificate of the worker names no token")
    return str(names[0])


def _peer_pid(connected: socket.socket) -> int | None:
    """Return the id of the process at the other end of a Unix socket, as this process's namespace has it.

    None where the system does not tell it, or the process is outside this namespace.
    """
    if sys.platform == "linux":
        pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    elif sys.platform == "darwin":
        (pid,) = _INT.unpack(connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _INT.size))
    else:
        return None
    return int(pid) if pid > 1 else None  # 0: outside; 1 never is a worker, and -1 would mean every process
