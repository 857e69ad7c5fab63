"""One gRPC call: its messages and its status. It is the handler's context as well, with what grpc.aio's has."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Final, NoReturn, Protocol

from grpc import StatusCode
from grpc.aio import EOF, AbortError

from torchserve_py.transport.http2 import header_blocks
from torchserve_py.transport.http2.call_context import Context
from torchserve_py.transport.http2.frames import ErrorCode, StreamFailed
from torchserve_py.transport.http2.grpc_messages import PREFIX, BadMessage, Compressed, MessageReader, decompressed
from torchserve_py.transport.http2.handler_run import HandlerRun
from torchserve_py.transport.http2.methods import Method, Shared
from torchserve_py.transport.http2.request_head import RequestHead
from torchserve_py.transport.http2.stalls import Progress
from torchserve_py.transport.http2.stream import Stream
from torchserve_py.transport.http2.unread import Unread
from torchserve_py.transport.turns import running_turns

logger = logging.getLogger(__name__)

#: Bytes that a client may send on one stream before the handler has read some of them.
STREAM_WINDOW: Final = 1 << 20
#: What a call takes besides the bytes of its client, about (bytes).
CALL_COST: Final = 8192


class Carrier(Protocol):
    """The connection of a call; `Http2Connection` implements this."""

    @property
    def peer(self) -> str:
        """The client's address as gRPC writes it."""

    @property
    def unread(self) -> Unread:
        """The count of bytes that the client has not read."""

    def ready(self, call: Call) -> None:
        """Note that the call has something to send."""

    def flush(self) -> None:
        """Send what can be sent now."""

    def give_window(self, stream_id: int, size: int) -> None:
        """Let the client send ``size`` more bytes."""

    def task_started(self) -> None:
        """Note that a handler has started."""

    def task_ended(self) -> None:
        """Note that a handler has ended."""


class Call(Context):
    """A call, from its headers to its trailers.

    Args:
        carrier: The connection of the call.
        stream_id: The stream of the call.
        head: The headers.
        method: The method that serves the call.
        shared: Limits and state that all calls of the server share.

    Raises BadMessage: the server already holds as many bytes of requests as it may.
    """

    def __init__(self, carrier: Carrier, stream_id: int, head: RequestHead, method: Method, shared: Shared) -> None:
        super().__init__(head, carrier.peer)
        self.stream = Stream(stream_id, carrier.unread)
        #: How many bytes of data the client may still send.
        self.receive_window = STREAM_WINDOW
        #: Whether the client has sent everything.
        self.input_has_ended = False
        self._carrier = carrier
        self._method = method
        self._handler: Any = method.handler
        self._shared = shared
        self.reader = MessageReader(method.limit, shared.budget)  # counts what the server holds for the call, too
        self.reader.hold(CALL_COST + head.size)
        self._received = 0
        self._messages: deque[bytes] = deque()
        self._taken_size = 0  # of the message that the handler has
        self._end_of_slice = 0.0  # until when the handler may read without a pause
        self._waiter: asyncio.Future[None] | None = None
        self._run = HandlerRun(self, method.handler)
        self._over = self._initial_sent = False
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(head.timeout, self._expire)
        if self._handler.request_streaming:
            self._start()

    # Called by the connection.

    def take_data(self, data: bytes) -> None:
        """Take some of the client's bytes. Raises StreamFailed: the client has sent more bytes than it announced."""
        self._received += len(data)
        announced = self._head.content_length
        if announced is not None and self._received > announced:
            raise StreamFailed(self.stream.id, ErrorCode.PROTOCOL_ERROR)
        if self._over:
            return
        try:
            self._messages += self.reader.feed(data)
        except BadMessage as error:
            self.fail(error.code, str(error))
            return
        if self._waiter is not None and self._messages:
            self._wake()
        self._give_window()

    def end_input(self) -> None:
        """Note that the client has sent everything.

        Raises StreamFailed: the client has sent fewer bytes than it announced.
        """
        self.input_has_ended = True
        if self._head.content_length not in (None, self._received):
            raise StreamFailed(self.stream.id, ErrorCode.PROTOCOL_ERROR)
        if self._over:
            return
        if not self.reader.is_between_messages:
            self.fail(StatusCode.INTERNAL, "The request ends within a message.")
        elif self._handler.request_streaming:
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
    def is_served(self) -> bool:
        """Whether the handler has been called."""
        return self._run.has_begun

    @property
    def progress(self) -> Progress:
        """How far the client has got with sending the request and fetching the answer."""
        reader, stream = self.reader, self.stream
        if self._handler.request_streaming:  # silence between messages is no stall, nor is that of a full window
            awaits = not (reader.is_between_messages or self._over or len(self._messages) > 1)
            messages = reader.completed
        else:
            awaits = not (self.input_has_ended or self._over)
            messages = 0  # of which it takes one, and that with its end
        return Progress(awaits, self._received, messages, stream.pending, stream.sent)

    def abandon(self) -> None:
        """End the call: the client has disconnected or cancelled."""
        if not self._over:
            self._over = True
            self._code = StatusCode.CANCELLED
        self._release()
        self.stream.discard()
        self._stop()

    def _release(self) -> None:
        """Release the client's bytes, except those that the handler still uses."""
        if not self._run.is_running:
            self._messages.clear()
            self.reader.release()

    # The handler.

    def _start(self) -> None:
        self._carrier.task_started()
        self._run.start(in_task=self._handler.request_streaming or isinstance(self._messages[0], Compressed))

    def handler_ended(self) -> None:
        """Note that the handler has ended."""
        self._release()
        self._carrier.task_ended()
        for callback in self._callbacks:
            callback(self)

    def respond(self, response: Any) -> None:
        """End the call with the response of the handler; a handler that has written its messages has None."""
        if not self._handler.response_streaming:
            self.send(response)
        self._conclude(self._code or StatusCode.OK, self._details)

    def follow(self, result: Any) -> None:
        """Answer with what a handler may return; for one that has returned `LATER`."""
        self._run.follow(result)

    def _expire(self) -> None:
        if not self._over:
            self.fail(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif self.stream.pending:  # the handler has ended, but the client has not fetched its answer
            self.stream.discard()
            self.stream.end(header_blocks.trailers(StatusCode.DEADLINE_EXCEEDED.value[0], "Deadline Exceeded", ()))
            self._carrier.ready(self)

    def raised(self, error: Exception) -> None:
        """End the call after an exception of its handler; an `AbortError` has ended it already."""
        if isinstance(error, AbortError):
            return
        if self._method.refuse is not None:
            self.end(*self._method.refuse(error))
            return
        logger.error("A handler of gRPC calls has failed.", exc_info=error)
        self.fail(self._code or StatusCode.UNKNOWN, self._details or f"Unexpected {type(error)}: {error}")

    def fail(self, code: StatusCode, details: str) -> None:
        """End the call now, without waiting for its handler."""
        if self._over:
            return
        self.stream.discard()
        self._conclude(code, details)
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._run.stop()

    def _conclude(self, code: StatusCode, details: str) -> None:
        if self._over:
            return
        self._over = True
        self._code, self._details = code, details
        self._release()
        if code is StatusCode.OK and not details and not self._trailing:
            block = header_blocks.OK_TRAILERS
        else:
            block = header_blocks.trailers(code.value[0], details, self._trailing)
        if not self._initial_sent:
            self._initial_sent = True
            block = header_blocks.RESPONSE + block
        self.stream.end(block)
        self._carrier.ready(self)

    # Messages.

    async def awaited_request(self) -> Any:
        """Return what the handler gets."""
        return _Requests(self) if self._handler.request_streaming else await self._taken()

    async def _taken(self) -> Any:
        """Return the message that has waited longest, decoded for the handler."""
        message = self._messages[0]
        if not isinstance(message, Compressed):
            return self.next_request()
        self._messages.popleft()
        try:
            whole = await decompressed(
                self._shared.decompressor, message, self._head.encoding, self._method.limit, self.reader
            )
        except BadMessage as error:
            self.fail(error.code, str(error))
            raise AbortError from error
        self._taken_size = len(message) + len(whole)
        return self._decoded(whole)

    def next_request(self) -> Any:
        """Return the message that has waited longest, decoded; it is not compressed."""
        message = self._messages.popleft()
        self._taken_size = len(message)
        return self._decoded(message)

    def _decoded(self, message: bytes) -> Any:
        deserialize = self._handler.request_deserializer
        try:
            return message if deserialize is None else deserialize(message)
        except Exception as error:
            self.fail(StatusCode.INTERNAL, f"The request cannot be read: {error}")
            raise AbortError from error

    def send(self, message: Any) -> None:
        """Send a message without waiting for the client, as `room` does.

        Raises AbortError: the client leaves too much unread; the call has been ended.
        """
        if self._over:
            return
        serialize = self._handler.response_serializer
        data = message if serialize is None else serialize(message)
        unread = self._carrier.unread
        if unread.held and not unread.has_room(len(data)):
            self.fail(
                StatusCode.RESOURCE_EXHAUSTED,
                f"The client has left {unread.held} bytes of answers unread; {len(data)} more are too many.",
            )
            raise AbortError("The client leaves too much unread.")
        if not self._initial_sent:
            self._initial_sent = True
            self.stream.send_head(header_blocks.RESPONSE)
        self.stream.send(PREFIX.pack(0, len(data)), data)
        self._carrier.ready(self)

    async def write(self, message: Any) -> None:
        """Send a message; returns when there is room for another one."""
        self.send(message)
        await self.room()

    async def room(self) -> None:
        """Wait until the client has read enough of what was sent."""
        while self.stream.is_full:
            self._carrier.flush()
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
            if self.input_has_ended or self._over:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._end_of_slice = turns.end_of_slice()
        message = await self._taken()
        self._give_window()
        return message

    def _give_window(self) -> None:
        """Let the client send more if what it has sent was read, or is not a message yet."""
        used = STREAM_WINDOW - self.receive_window
        if used >= STREAM_WINDOW // 2 and len(self._messages) <= 1 and not self.input_has_ended:
            self.receive_window = STREAM_WINDOW
            self._carrier.give_window(self.stream.id, used)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def end(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error."""
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        self._conclude(code, details)
        self._run.end()

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with an error."""
        self.end(code, details, trailing_metadata)
        raise AbortError("The call has been aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with an error."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send the headers now, with metadata; they can be sent once."""
        if self._initial_sent:
            raise asyncio.InvalidStateError("The initial metadata has been sent.")
        self._initial_sent = True
        self.stream.send_head(header_blocks.initial(tuple(initial_metadata or ())))
        self._carrier.ready(self)

    def cancelled(self) -> bool:
        """Whether the call has ended without the handler."""
        return self._over and self._run.is_running

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._over


class _Requests:
    """The messages of a call, for a handler that iterates over them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._call.read()
        if message is EOF:
            raise StopAsyncIteration
        return message
