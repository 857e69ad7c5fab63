"""The worker's end of a connection to the frontend: one blocking socket.

The thread that runs the handler reads and writes it, except while measurements show that threads for this pay
(`ts.connection.connection_threads`).

Cancellations take effect out of order: `FrontendConnection.cancelled` records each one as it is read, so a job can be
stopped before its batch begins or while the batch runs. All other messages are delivered in order.
"""

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ts.connection.connection_threads import SHORTEST_RUN, ConnectionThreads, Overlap
from ts.connection.worker_socket import connect, unread
from ts.protocol.frames import Buffer, FrameBuffer, encode
from ts.protocol.messages import CANCEL, HELLO, METRICS, ResultRow, encode_results

logger = logging.getLogger(__name__)

#: The most buffers for one system call; the kernel takes 1,024.
_MAX_BUFFERS = 512
_NO_WAIT = 0
#: Messages of so many bytes are handed over to the sending thread; a smaller one takes less time than that.
_WORTH_HANDING_OVER = 64 * 1024


class FrontendGone(SystemExit):
    """The frontend closed the connection, so this process ends.

    The base class is SystemExit, so that an ``except Exception`` in a handler cannot swallow it.
    """


class FrontendConnection:
    """One connection to the frontend.

    Raises:
        OSError: The frontend does not listen at ``address`` (see `ts.connection.worker_socket`).

    Attributes:
        cancelled: Ids of jobs that the frontend has cancelled and that this worker may not have answered yet.
        is_plain: Whether one thread may send while another receives. Over TLS it may not, and one buffer is sent
            at a time.
    """

    def __init__(self, address: str, channel: str, token: str, rank: int = 0) -> None:
        self.cancelled: set[str] = set()
        self._messages: deque[list[Any]] = deque()
        self._buffer = FrameBuffer()
        self._socket = connect(address)
        self.is_plain = type(self._socket) is socket.socket
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        #: The threads that read and write; None while those do who call this object.
        self._threads: ConnectionThreads | None = None
        self._made_threads: ConnectionThreads | None = None
        self._overlap = Overlap()
        #: Whether everything was read a moment ago that had arrived.
        self._has_just_read = False
        #: The thread that runs the handler, when its present step began, and for how long it has written large
        #: messages since (seconds).
        self._runs_handler, self._step_began = 0, 0.0
        self._write_seconds = 0.0
        self.send([HELLO, {"token": token, "channel": channel, "rank": rank}])

    def receive(self, *, wait: bool) -> list[Any] | None:
        """Return the next message; None if none has arrived and ``wait`` is false.

        Raises FrontendGone: the frontend closed the connection; FrameError: the frontend sent bytes that are no frame.
        """
        if not self._messages:
            if wait:
                self._wait_for_message()
            else:
                self.look()
        return self._messages.popleft() if self._messages else None

    def look(self) -> None:
        """Read the messages that have arrived, without waiting, and record cancellations.

        Raises FrontendGone: the frontend closed the connection; FrameError: the frontend sent bytes that are no frame.
        """
        if self._threads is not None:
            self._threads.raise_error()
        elif self._has_just_read:
            self._has_just_read = False
        elif self._poll.poll(_NO_WAIT):  # of TLS, all that had arrived before was read
            self._read()

    @property
    def has_more(self) -> bool:
        """Whether messages wait that were not received, or parts of one."""
        return bool(self._messages or self._buffer.has_part or self._poll.poll(_NO_WAIT))

    def send(self, message: list[Any], *, large: bool = False) -> None:
        """Send one message; ``large`` says that it may hold large bodies.

        Raises FrontendGone: the frontend closed the connection.
        """
        self._write(encode(message, large=large))

    def send_results(self, rows: Sequence[ResultRow], seconds: float, metrics: Sequence[list[Any]] = ()) -> None:
        """Send result rows, with the seconds that the handler took and the metrics that the handler reported.

        Raises FrontendGone: the frontend closed the connection.
        """
        frame = encode_results(rows, seconds)
        self._write([*_metrics_frame(metrics), *frame] if metrics else frame)

    def fileno(self) -> int:
        """Return the file descriptor of the socket, which an event loop can watch for messages."""
        return self._socket.fileno()

    def step_begins(self) -> None:
        """Note that the thread that calls this begins a step of the handler."""
        self._runs_handler, self._write_seconds = threading.get_ident(), 0.0
        self._step_began = time.perf_counter()

    def step_ended(self) -> None:
        """Note that the step has ended; have threads read and write during later ones while that pays."""
        if not self.is_plain:
            return
        began, ended = self._step_began, time.perf_counter()
        if ended - began < SHORTEST_RUN and self._threads is None:
            self._overlap.since = None  # so short a step is not measured
            return
        is_followed = ended - began >= SHORTEST_RUN and self.has_more
        self._overlap.ran(began, ended, self._write_seconds, is_followed=is_followed)
        if self._overlap.pays and self._threads is None:
            self.overlap()
        elif self._threads is not None and not self._overlap.pays:
            self.end_overlap()

    def overlap(self) -> None:
        """Read and write in threads from now on, while the thread that calls this one runs the handler."""
        if self._made_threads is None:
            poll = select.poll()  # each thread needs one of its own
            poll.register(self._socket, select.POLLIN)
            self._made_threads = ConnectionThreads(poll.poll, self._read, self._write_now)
        self._threads = self._made_threads
        self._threads.set_receiving(True)

    def end_overlap(self) -> None:
        """Leave reading and writing to the callers again, but for what the threads have to write already."""
        if self._threads is not None:
            self._threads.set_receiving(False)
            self._threads = None

    def flush(self) -> None:
        """Wait until all that was sent is written. Raises FrontendGone: the frontend closed the connection."""
        if (threads := self._made_threads) is not None and threads.has_unsent:
            threads.wait_until(lambda: not threads.has_unsent)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _wait_for_message(self) -> None:
        # A caller that waits has answered all jobs: a cancellation that is left crossed its job's answer.
        if self._threads is None:
            self.cancelled.clear()
            while not self._messages:
                self._read()
            self._has_just_read = True
        else:
            self._threads.wait_until(self._has_messages_or_forgets)

    def _has_messages_or_forgets(self) -> bool:
        if not self._messages:
            self.cancelled.clear()
        return bool(self._messages)

    def _read(self) -> bool:
        """Read what has arrived, at least one byte; return whether that completed a message."""
        is_complete = False
        self._receive_bytes()
        while not self.is_plain and unread(self._socket):
            self._receive_bytes()
        for message in self._buffer.messages():
            is_complete = True
            if message[0] == CANCEL:
                self.cancelled.update(message[1])
            else:
                self._messages.append(message)
        return is_complete

    def _receive_bytes(self) -> None:
        try:
            count = self._socket.recv_into(self._buffer.writable())
        except OSError as error:
            raise FrontendGone(0) from error
        if count == 0:
            raise FrontendGone(0)
        self._buffer.received(count)

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if sum(map(len, buffers)) < _WORTH_HANDING_OVER:
            self.flush()
            self._write_now(buffers)
            return
        began = time.perf_counter()
        if self._threads is not None and all(type(buffer) is bytes for buffer in buffers):
            self._threads.send(buffers)
        else:  # a handler may go on with a buffer that can change
            self.flush()
            self._write_now(buffers)
        if threading.get_ident() == self._runs_handler:
            self._write_seconds += time.perf_counter() - began

    def _write_now(self, buffers: Sequence[Buffer]) -> None:
        try:
            if len(buffers) == 1:
                self._socket.sendall(buffers[0])
            elif self.is_plain:
                self._write_many([memoryview(buffer) for buffer in buffers])
            else:
                self._socket.sendall(b"".join(buffers))
        except OSError as error:
            raise FrontendGone(0) from error

    def _write_many(self, views: list[memoryview]) -> None:
        first = 0
        while first < len(views):
            sent = self._socket.sendmsg(views[first : first + _MAX_BUFFERS])
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if sent:
                views[first] = views[first][sent:]


class FollowerConnection(FrontendConnection):
    """The connection of a rank other than 0: the rank runs the same batches, but rank 0 alone sends the results."""

    def send_results(self, rows: Sequence[ResultRow], seconds: float, metrics: Sequence[list[Any]] = ()) -> None:
        """Send only the metrics, if there are any."""
        if metrics:
            self._write(_metrics_frame(metrics))


def _metrics_frame(metrics: Sequence[list[Any]]) -> list[Buffer]:
    """Return the frame with a handler's metrics, or an empty list for metrics that cannot be encoded.

    Such metrics are logged and must not fail a prediction.
    """
    try:
        return encode([METRICS, metrics], spelled_out=True)
    except (TypeError, ValueError, OverflowError):
        logger.exception("Metrics of the handler cannot be sent: %r", metrics)
        return []
