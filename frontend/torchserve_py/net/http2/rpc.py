"""One gRPC call: its method, its messages, its status, and its handler.

A handler is called without a task, and gets one only if it returns an awaitable or an iterator. It may also return a
`LaterReply`, which calls `Rpc.follow` or `Rpc.raised` when the answer is known.

A call is in one of these states. The client's end comes with the last message of its request, which may be before the
handler's or after it; it changes nothing here but `Rpc.input_has_ended`.

| state    | `has_begun` | `_is_running` | `is_over` | what happens                                            |
|----------|-------------|---------------|-----------|---------------------------------------------------------|
| arriving | no          | no            | no        | the one message of the request has not arrived          |
| starting | no          | yes           | no        | the handler is called in the next turn, or the message  |
|          |             |               |           | is being decompressed                                   |
| running  | yes         | yes           | no        | the handler, its task, or a `LaterReply` answers        |
| leaving  | yes or no   | yes           | yes       | the status is settled, and the task is being cancelled  |
| over     | yes or no   | no            | yes       | the rest of the answer is sent; `on_end` has been called |
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from torchserve_py.net.http2 import header_blocks
from torchserve_py.net.http2.frames import ErrorCode, StreamFailed
from torchserve_py.net.http2.grpc_messages import (
    PREFIX,
    BadGrpcMessage,
    Compressed,
    MessageLimit,
    MessageReader,
    decompressed,
)
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.request_head import Metadata, RequestHead
from torchserve_py.net.http2.stream import Progress, Stream
from torchserve_py.net.turns import running_turns

if TYPE_CHECKING:
    from torchserve_py.net.http2.http2_connection import Http2Connection

logger = logging.getLogger(__name__)

#: Bytes that a client may send on one stream before the handler has read some of them.
STREAM_WINDOW: Final = 1 << 20
#: What a call takes besides the bytes of its client, about (bytes).
CALL_COST: Final = 8192


class _End(Enum):
    end = "end"


#: What a handler reads after the last message of its client.
EOF: Final = _End.end


class AbortError(Exception):
    """The call has ended, and its handler has nothing left to do; it lets this pass."""


class RpcLimits(NamedTuple):
    """Limits per client."""

    #: Calls of a connection, and seconds that a stalled call is kept.
    streams: int
    stall: float = 120.0
    #: The maximum age of a connection, and how long its calls may then continue (seconds; None: no limit).
    age: float | None = None
    grace: float | None = None


class Denied(NamedTuple):
    """The status of a call that is not served."""

    code: StatusCode
    details: str
    metadata: Metadata = ()


def _unexpected(error: Exception) -> Denied:
    logger.error("A handler of gRPC calls has failed.", exc_info=error)
    return Denied(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


class RpcMethod(NamedTuple):
    """A method.

    The handler, ``serve``, gets the request and the call. It returns a response (None for no message), a `LaterReply`,
    or what runs in a task: an awaitable that gives a response, or an asynchronous iterator of responses.
    """

    serve: Callable[[Any, Rpc], Any]
    limit: MessageLimit
    #: Makes a request of the bytes of a message, and bytes of a response; None for handlers of bytes.
    read: Callable[[bytes], Any] | None = None
    write: Callable[[Any], bytes] | None = None
    #: Whether a call has any number of requests; then the handler gets the call, to iterate over, as its request.
    takes_stream: bool = False
    #: Gets the metadata of a call and the client's address as gRPC writes it, before anything else of the call is kept;
    #: returns why the call is refused, as a `Denied`, or else what becomes its `Rpc.credential`.
    admit: Callable[[Metadata, str], Any] | None = None
    #: Gets each call whose head was let pass, before anything else of it has arrived.
    opened: Callable[[Rpc], None] = lambda rpc: None
    #: Returns the status of a call whose handler raises.
    refuse: Callable[[Exception], Denied] = _unexpected


class LaterReply(ABC):
    """What a handler returns whose answer is known later, without a task."""

    __slots__ = ()

    @abstractmethod
    def answer(self, rpc: Rpc) -> None:
        """Have `Rpc.follow` or `Rpc.raised` called once the answer is known, now or later."""


class Rpc:
    """A call, from its headers to its trailers; a method of many requests iterates over them.

    Raises BadMessage: the server already holds as many bytes of requests as it may.
    """

    def __init__(
        self, connection: Http2Connection, stream_id: int, head: RequestHead, method: RpcMethod, credential: Any = None
    ) -> None:
        self.credential = credential
        self.stream = Stream(stream_id, connection.unread)
        self.method = method
        #: The client's metadata, and its address as gRPC writes it.
        self.metadata, self.peer = head.metadata, connection.peer
        #: The status of the call, once it is over, and the metadata to be sent with it.
        self.code: StatusCode | None = None
        self.trailing_metadata: Metadata = ()
        #: Metadata that is sent with it whatever the handler sends.
        self.always_sent: Metadata = ()
        #: Metadata that is sent with any status but OK.
        self.sent_on_failure: Metadata = ()
        #: Fields of the access log that the call itself does not hold.
        self.log_fields: Mapping[str, str | None] = {}
        #: Called when the call is over, and its handler has ended or will never be called.
        self.on_end: list[Callable[[Rpc], None]] = []
        #: How many bytes of data the client may still send.
        self.receive_window = STREAM_WINDOW
        #: Whether the client has sent everything, and whether the status is settled.
        self.input_has_ended = self.is_over = False
        self._connection = connection
        self._head = head
        #: Counts what the server holds for the call, too.
        self.reader = MessageReader(method.limit, connection.server.budget)
        self.reader.hold(CALL_COST + head.size)
        self._received = 0
        self._messages: deque[bytes] = deque()
        self._taken_size = 0  # of the message that the handler has
        self._end_of_slice = 0.0  # until when the handler may read without a pause
        self._waiter: asyncio.Future[None] | None = None
        #: Whether the handler has been called; whether it was asked for, and has not ended.
        self.has_begun = self._is_running = False
        self._beginning: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(head.timeout, self._expire)
        method.opened(self)
        if method.takes_stream:
            self._start()

    # Called by the connection.

    def take_data(self, data: bytes) -> None:
        """Take some of the client's bytes. Raises StreamFailed: the client has sent more bytes than it announced."""
        self._received += len(data)
        announced = self._head.content_length
        if announced is not None and self._received > announced:
            raise StreamFailed(self.stream.id, ErrorCode.PROTOCOL_ERROR)
        if self.is_over:
            return
        try:
            self._messages += self.reader.feed(data)
        except BadGrpcMessage as error:
            self.fail(error.code, str(error))
            return
        if self._waiter is not None and self._messages:
            self._wake()
        self._give_window()

    def end_input(self) -> None:
        """Note that the client has sent everything. Raises StreamFailed: that is less than it announced."""
        self.input_has_ended = True
        if self._head.content_length not in (None, self._received):
            raise StreamFailed(self.stream.id, ErrorCode.PROTOCOL_ERROR)
        if self.is_over:
            return
        if self.reader.arrived:
            self.fail(StatusCode.INTERNAL, "The request ends within a message.")
        elif self.method.takes_stream:
            self._wake()
        elif len(self._messages) != 1:
            self.fail(StatusCode.INTERNAL, f"The method takes one message; the request has {len(self._messages)}.")
        else:
            self._start()

    def finished(self) -> None:
        """Note that the whole answer has been sent."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def seconds_left(self) -> float | None:
        """How long the client still waits for the end of the call; None if it has named no deadline."""
        timer = self._timer
        return None if timer is None else max(0.0, timer.when() - asyncio.get_running_loop().time())

    @property
    def progress(self) -> Progress:
        """How far the client has got with sending the request and fetching the answer."""
        reader, stream = self.reader, self.stream
        if self.method.takes_stream:  # silence between messages is no stall, nor is that of a full window
            awaits = bool(reader.arrived) and not self.is_over and len(self._messages) <= 1
            messages = reader.completed
        else:
            awaits = not (self.input_has_ended or self.is_over)
            messages = 0  # of which it takes one, and that with its end
        return Progress(awaits, self._received, messages, stream.pending, stream.sent)

    def abandon(self) -> None:
        """End the call: the client has disconnected or cancelled."""
        if not self.is_over:
            self.is_over = True
            self.code = StatusCode.CANCELLED
        self._release()
        self.stream.discard()
        self._stop()

    def _release(self) -> None:
        """Release the client's bytes, except those that the handler still uses."""
        if not self._is_running:
            self._messages.clear()
            self.reader.release()

    # The handler.

    def _start(self) -> None:
        """Call the handler in the next turn of the event loop, or when its request is decompressed."""
        self._connection.running += 1
        self._is_running = True
        if not self.method.takes_stream and isinstance(self._messages[0], Compressed):
            self._run_in_task(self._begin_decompressed)
        else:
            self._beginning = asyncio.get_running_loop().call_soon(self._begin)

    async def _begin_decompressed(self) -> None:
        await self._decompress_next()
        if not self.is_over:
            self._task = None  # the handler is called without a task, as ever
            self._begin()

    def _begin(self) -> None:
        if not self._is_running:
            return
        self.has_begun = True
        try:
            result = self.method.serve(self if self.method.takes_stream else self._taken(), self)
        except Exception as error:
            self.raised(error)
            self._end_handler()
        else:
            self.follow(result)

    def follow(self, result: Any) -> None:
        """Answer with what a handler may return: a response, what gives one in a task, or a `LaterReply`."""
        if not self._is_running:  # the call is over
            if inspect.iscoroutine(result):
                result.close()
        elif isinstance(result, LaterReply):
            result.answer(self)
        elif hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            self._run_in_task(self._answer, result)
        else:
            try:
                self._respond(result)
            except Exception as error:
                self.raised(error)
            self._end_handler()

    def _run_in_task(self, work: Callable[..., Awaitable[None]], *results: Any) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            for result in filter(inspect.iscoroutine, results):
                result.close()  # where it was cancelled before it began
            if self._task is task:
                self._task = None
                self._end_handler()

        self._task = asyncio.get_running_loop().create_task(self._guarded(work, *results))
        self._task.add_done_callback(ended)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *results: Any) -> None:
        try:
            await work(*results)
        except asyncio.CancelledError:
            self.fail(StatusCode.CANCELLED, "The server ends the call.")
        except Exception as error:
            self.raised(error)
            error.__traceback__ = None  # whoever keeps the error would keep the frames, and these the call

    async def _answer(self, result: Any) -> None:
        if hasattr(result, "__aiter__"):
            async for message in result:
                await self.write(message)
            self._respond(None)
        else:
            self._respond(await result)

    def _respond(self, response: Any) -> None:
        """End the call with the response of the handler, if it has any besides those it has sent."""
        if response is not None:
            self.send(response)
        self._conclude(StatusCode.OK, "")

    def _end_handler(self) -> None:
        """Note that the handler has ended, unless it still runs in a task."""
        if self._is_running and self._task is None:
            self._is_running = False
            self._beginning = None
            self._connection.handler_ended()
            self._tell_end()
            self._release()

    def _tell_end(self) -> None:
        callbacks, self.on_end = self.on_end, []  # they hold what holds the call
        for callback in callbacks:
            callback(self)

    def _expire(self) -> None:
        if not self.is_over:
            self.fail(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif self.stream.pending:  # the handler has ended, but the client has not fetched its answer
            self.stream.discard()
            self.stream.end(header_blocks.trailers(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()))
            self._connection.sender.ready(self)

    def raised(self, error: Exception) -> None:
        """End the call after an exception of its handler; an `AbortError` has ended it already."""
        if not isinstance(error, AbortError):
            self.end(*self.method.refuse(error))

    def end(self, code: StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with a status, behind the messages that were sent."""
        if trailing_metadata:
            self.trailing_metadata = trailing_metadata
        self._conclude(code, details)
        self._end_handler()

    def fail(self, code: StatusCode, details: str) -> None:
        """End the call now: drop what has not left yet, and cancel the handler unless it is the caller."""
        if self.is_over:
            return
        self.stream.discard()
        self._conclude(code, details)
        self._stop()

    def _stop(self) -> None:
        """Cancel the timer, and the handler unless it is the caller."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            if self._beginning is not None:
                self._beginning.cancel()
            self._end_handler()
            self._tell_end()  # it may never have begun
        elif self._task is not asyncio.current_task():
            running_turns().put_off(self._task.cancel)  # a thousand calls may end at once

    def _conclude(self, code: StatusCode, details: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.code = code
        self._release()
        metadata = (*self.trailing_metadata, *self.always_sent)
        if code is not StatusCode.OK:
            metadata += self.sent_on_failure
        if code is StatusCode.OK and not details and not metadata:
            block = header_blocks.OK_TRAILERS
        else:
            block = header_blocks.trailers(code, details, metadata)
        self.stream.end(block)
        self._connection.sender.ready(self)

    # Messages.

    def _taken(self) -> Any:
        message = self._messages.popleft()
        self._taken_size += len(message)
        try:
            return message if self.method.read is None else self.method.read(message)
        except Exception as error:
            self.fail(StatusCode.INTERNAL, f"The request cannot be read: {error}")
            raise AbortError from error

    async def _decompress_next(self) -> None:
        """Decompress the message that has waited longest. Raises AbortError: it is malformed; the call has ended."""
        message = self._messages.popleft()
        assert isinstance(message, Compressed), "other messages are taken as they are"
        decompressor, encoding = self._connection.server.decompressor, self._head.encoding
        try:
            whole = await decompressed(decompressor, message, encoding, self.method.limit, self.reader)
        except BadGrpcMessage as error:
            self.fail(error.code, str(error))
            raise AbortError from error
        self._taken_size = len(message)
        self._messages.appendleft(whole)

    def send(self, message: Any) -> None:
        """Send a message without waiting. Raises AbortError: the client leaves too much unread; the call has ended."""
        if self.is_over:
            return
        data = message if self.method.write is None else self.method.write(message)
        unread = self._connection.unread
        if unread.held and not unread.has_room(len(data)):
            self.fail(
                StatusCode.RESOURCE_EXHAUSTED,
                f"The client has left {unread.held} bytes of answers unread; {len(data)} more are too many.",
            )
            raise AbortError("The client leaves too much unread.")
        self.stream.send(PREFIX.pack(0, len(data)), data)
        self._connection.sender.ready(self)

    async def write(self, message: Any) -> None:
        """Send a message; returns when there is room for another one."""
        self.send(message)
        await self.room()

    async def room(self) -> None:
        """Wait until the client has read enough of what was sent."""
        while self.stream.is_full:
            self._connection.sender.flush()
            await self.stream.drained()

    async def read(self) -> Any:
        """Return the client's next message; EOF after the last."""
        if self._taken_size:
            self.reader.release(self._taken_size)
            self._taken_size = 0
        turns = running_turns()
        if self._messages and monotonic() > self._end_of_slice:  # a handler may read thousands without a pause
            await turns.next()
            self._end_of_slice = turns.end_of_slice()
        while not self._messages:
            if self.input_has_ended or self.is_over:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._end_of_slice = turns.end_of_slice()
        if isinstance(self._messages[0], Compressed):
            await self._decompress_next()
        message = self._taken()
        self._give_window()
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    def _give_window(self) -> None:
        """Let the client send more if what it has sent was read, or is not a message yet."""
        used = STREAM_WINDOW - self.receive_window
        if used >= STREAM_WINDOW // 2 and len(self._messages) <= 1 and not self.input_has_ended:
            self.receive_window = STREAM_WINDOW
            self._connection.sender.give_window(self.stream.id, used)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
