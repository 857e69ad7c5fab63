"""The worker's end of a connection to the frontend: one blocking socket.

The thread that runs the handler reads and writes it, until measurements show that threads for this pay
(`ts.connection_threads`).

Cancellations take effect out of order: `Connection.cancelled` records each one as soon as it is read, so a job can be
stopped before its batch begins or while the batch runs. All other messages are delivered in order.
"""

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ts.connection_threads import SHORTEST_RUN, ConnectionThreads, Overlap
from ts.protocol.frames import Buffer, FrameBuffer, encode
from ts.protocol.messages import CANCEL, HELLO, METRICS, ResultRow, encode_results
from ts.worker_socket import connect, unread

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


class Connection:
    """One connection to the frontend.

    Raises:
        OSError: The frontend does not listen at ``address`` (see `ts.worker_socket`).

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
        self._threads: ConnectionThreads | None = None
        self._overlap = Overlap()
        #: Whether everything was read a moment ago that had arrived.
        self._has_just_read = False
        #: How long the thread that runs the handler has read, and has written large messages, since the last step.
        self._transfer_seconds = 0.0
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
            began = time.perf_counter()
            self._read()
            self._transfer_seconds += time.perf_counter() - began

    @property
    def has_more(self) -> bool:
        """Whether messages wait that were not received."""
        return bool(self._messages or (self._threads is None and self._poll.poll(_NO_WAIT)))

    def send(self, message: list[Any]) -> None:
        """Send one message that holds no large bodies. Raises FrontendGone: the frontend closed the connection."""
        self._write(encode(message))

    def send_results(self, rows: Sequence[ResultRow], seconds: float, metrics: Sequence[list[Any]] = ()) -> None:
        """Send result rows, with the seconds that the handler took and the metrics that the handler reported.

        Raises FrontendGone: the frontend closed the connection.
        """
        frame = encode_results(rows, seconds)
        self._write([*_metrics_frame(metrics), *frame] if metrics else frame)

    def fileno(self) -> int:
        """Return the file descriptor of the socket, which an event loop can watch for messages."""
        return self._socket.fileno()

    def run_step(self, step: Callable[[], None]) -> None:
        """Run a step of the handler; start threads that read and write during later ones if this pays."""
        began, transferred = time.perf_counter(), self._transfer_seconds
        step()
        seconds = time.perf_counter() - began
        transfer, self._transfer_seconds = self._transfer_seconds, 0.0
        is_measured = seconds >= SHORTEST_RUN and self._threads is None
        if is_measured and self._overlap.pays(seconds - (transfer - transferred), transfer):
            self.overlap()

    def overlap(self) -> None:
        """Read and write in threads from now on, while the thread that calls this one runs the handler."""
        if self._threads is None and self.is_plain:
            self._threads = ConnectionThreads(self._poll.poll, self._read, self._write_now)

    def flush(self) -> None:
        """Wait until all that was sent is written. Raises FrontendGone: the frontend closed the connection."""
        if (threads := self._threads) is not None and threads.has_unsent:
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

    def _read(self) -> None:
        self._receive_bytes()
        while not self.is_plain and unread(self._socket):
            self._receive_bytes()
        for message in self._buffer.messages():
            if message[0] == CANCEL:
                self.cancelled.update(message[1])
            else:
                self._messages.append(message)

    def _receive_bytes(self) -> None:
        try:
            count = self._socket.recv_into(self._buffer.writable())
        except OSError as error:
            raise FrontendGone(0) from error
        if count == 0:
            raise FrontendGone(0)
        self._buffer.received(count)

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if self._threads is None:
            if len(buffers) == 1 and len(buffers[0]) < _WORTH_HANDING_OVER:
                self._write_now(buffers)
                return
            began = time.perf_counter()
            self._write_now(buffers)
            self._transfer_seconds += time.perf_counter() - began
        elif sum(map(len, buffers)) >= _WORTH_HANDING_OVER and all(type(buffer) is bytes for buffer in buffers):
            self._threads.send(buffers)
        else:  # a handler may go on with a buffer that can change
            self.flush()
            self._write_now(buffers)

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


class FollowerConnection(Connection):
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
        return encode([METRICS, metrics])
    except (TypeError, ValueError, OverflowError):
        logger.exception("Metrics of the handler cannot be sent: %r", metrics)
        return []
