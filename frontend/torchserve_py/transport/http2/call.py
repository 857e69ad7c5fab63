"""One gRPC call: its messages, its status, and the task in which its handler runs.

It is the handler's context as well, with what grpc.aio's has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol

from grpc import RpcMethodHandler, StatusCode
from grpc.aio import EOF, AbortError, ServicerContext

from torchserve_py.transport.http2 import header_blocks
from torchserve_py.transport.http2.header_blocks import Metadata, RequestHead
from torchserve_py.transport.http2.large_messages import BadMessage, MessageLimit
from torchserve_py.transport.http2.messages import PREFIX, Compressed, MessageReader
from torchserve_py.transport.http2.stream import Stream

logger = logging.getLogger(__name__)

#: How many bytes of one stream a client may send before some of them were read.
STREAM_WINDOW: Final = 1 << 20

_NUMBERS: Final = {code.value[0]: code for code in StatusCode}


class Carrier(Protocol):
    """The connection of a call."""

    @property
    def peer(self) -> str:
        """The client's address as gRPC writes it."""

    def ready(self, call: Call) -> None:
        """There is something to send."""

    def flush(self) -> None:
        """Send what can be sent now."""

    def give_window(self, stream_id: int, size: int) -> None:
        """Let the client send so many bytes more."""

    def task_started(self) -> None:
        """A handler runs."""

    def task_ended(self) -> None:
        """A handler runs no more."""


class Call(ServicerContext[Any, Any]):
    """A call, from its headers to its trailers.

    Args:
        carrier: Its connection.
        stream: Where its answer leaves.
        head: The headers.
        handler: What serves the method.
        limit: How large a message may be.
    """

    def __init__(
        self,
        carrier: Carrier,
        stream: Stream,
        head: RequestHead,
        handler: RpcMethodHandler[Any, Any],
        limit: MessageLimit,
    ) -> None:
        self.stream = stream
        #: How many bytes of data the client may still send.
        self.receive_window = STREAM_WINDOW
        #: Whether the client has sent everything.
        self.input_has_ended = False
        #: Whether its handler has begun to run.
        self.is_served = False
        self._carrier = carrier
        self._head = head
        self._handler: Any = handler
        self._reader = MessageReader(limit, head.encoding)
        self._messages: deque[bytes] = deque()
        self._taken_size = 0  # of the large message that the handler has
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._initial_sent = False
        self._code: StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            self._deadline = time.monotonic() + head.timeout
            self._timer = asyncio.get_running_loop().call_later(head.timeout, self._expire)
        if self._handler.request_streaming:
            self._start()

    # What the connection tells.

    def take_data(self, data: bytes) -> None:
        """Some of the client's bytes."""
        if self._over:
            return
        try:
            self._messages += self._reader.feed(data)
        except BadMessage as error:
            self._fail(error.code, str(error))
            return
        if self._waiter is not None and self._messages:
            self._wake()
        self._give_window()

    def end_input(self) -> None:
        """The client has sent everything."""
        self.input_has_ended = True
        if self._over:
            return
        if not self._reader.is_between_messages:
            self._fail(StatusCode.INTERNAL, "The request ends within a message.")
        elif self._handler.request_streaming:
            self._wake()
        elif len(self._messages) != 1:
            self._fail(StatusCode.INTERNAL, f"The method takes one message; the request has {len(self._messages)}.")
        else:
            self._start()

    def finished(self) -> None:
        """The answer has left to its end."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing happens until the client sends the rest of the request, or fetches that of the answer."""
        return self._over or not (self.input_has_ended or self._handler.request_streaming)

    @property
    def progress(self) -> tuple[int, ...]:
        """What changes when the client does anything about the call."""
        return self._reader.arrived, self.stream.pending, self.stream.window

    def abandon(self) -> None:
        """The client is gone, or wants no answer."""
        self._over = True
        self._reader.release()
        self.stream.discard()
        self._stop()

    # The handler's task.

    def _start(self) -> None:
        self._carrier.task_started()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._carrier.task_ended()
        for callback in self._callbacks:
            callback(self)

    async def _run(self) -> None:
        try:
            await self._serve()
        except AbortError:
            pass  # it has ended the call
        except asyncio.CancelledError:
            self._fail(StatusCode.CANCELLED, "The server ends the call.")
        except Exception as error:
            logger.exception("A handler of gRPC calls has failed.")
            self._fail(self._code or StatusCode.UNKNOWN, self._details or f"Unexpected {type(error)}: {error}")

    async def _serve(self) -> None:
        self.is_served = True
        handler = self._handler
        request = _Requests(self) if handler.request_streaming else await self._taken()
        behaviour = (
            (handler.stream_stream or handler.stream_unary)
            if handler.request_streaming
            else (handler.unary_unary or handler.unary_stream)
        )
        result = behaviour(request, self)
        if hasattr(result, "__aiter__"):
            async for message in result:
                await self.write(message)
        else:
            response = await result if hasattr(result, "__await__") else result
            if not handler.response_streaming:
                self._send(response)
        self._conclude(self._code or StatusCode.OK, self._details)

    def _expire(self) -> None:
        if not self._over:
            self._fail(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        elif self.stream.pending:  # the handler has ended, but the client has not fetched its answer
            self.stream.discard()
            self.stream.end(header_blocks.trailers(StatusCode.DEADLINE_EXCEEDED.value[0], "Deadline Exceeded", ()))
            self._carrier.ready(self)

    def _fail(self, code: StatusCode, details: str) -> None:
        """End the call now, whatever its handler does."""
        if self._over:
            return
        self.stream.discard()
        self._code, self._details = code, details
        self._conclude(code, details)
        if self._task is not asyncio.current_task():
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _conclude(self, code: StatusCode, details: str) -> None:
        if self._over:
            return
        self._over = True
        self._reader.release()
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

    async def _taken(self) -> Any:
        """The message that has waited longest, as the handler gets it."""
        message = self._messages.popleft()
        self._taken_size = self._reader.counted(len(message))
        deserialize = self._handler.request_deserializer
        try:
            if isinstance(message, Compressed):
                message = await self._reader.decompress(message)
                self._taken_size += self._reader.counted(len(message))
            return message if deserialize is None else deserialize(message)
        except BadMessage as error:
            self._fail(error.code, str(error))
            raise AbortError from error
        except Exception as error:
            self._fail(StatusCode.INTERNAL, f"The request cannot be read: {error}")
            raise AbortError from error

    def _send(self, message: Any) -> None:
        serialize = self._handler.response_serializer
        data = message if serialize is None else serialize(message)
        if self._over:
            return
        if not self._initial_sent:
            self._initial_sent = True
            self.stream.send_head(header_blocks.RESPONSE)
        self.stream.send(PREFIX.pack(0, len(data)) + data)
        self._carrier.ready(self)

    async def write(self, message: Any) -> None:
        """Send a message; returns when there is room for another one."""
        self._send(message)
        if self.stream.is_full:
            self._carrier.flush()
            await self.stream.drained()

    async def read(self) -> Any:
        """The client's next message; EOF after the last."""
        if self._taken_size:
            self._reader.release(self._taken_size)
            self._taken_size = 0
        while not self._messages:
            if self.input_has_ended or self._over:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
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

    # What is left of a context.

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with an error."""
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        self._code, self._details = code, details
        self._conclude(code, details)
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

    def invocation_metadata(self) -> Any:
        """The client's metadata."""
        return self._head.metadata

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Metadata for the end of the call."""
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        """What was set."""
        return self._trailing

    def set_code(self, code: StatusCode | int) -> None:
        """The status that the call shall end with."""
        self._code = code if isinstance(code, StatusCode) else _NUMBERS[code]

    def set_details(self, details: str) -> None:
        """The description of the status."""
        self._details = details

    def code(self) -> Any:
        """What was set."""
        return self._code

    def details(self) -> str:
        """What was set."""
        return self._details

    def peer(self) -> str:
        """The client's address."""
        return self._carrier.peer

    def peer_identities(self) -> None:
        """Clients do not prove who they are."""

    def peer_identity_key(self) -> None:
        """Clients do not prove who they are."""

    def auth_context(self) -> Mapping[str, Any]:
        """Clients do not prove who they are."""
        return {}

    def set_compression(self, compression: Any) -> None:
        """Responses are never compressed."""

    def disable_next_message_compression(self) -> None:
        """Responses are never compressed."""

    def time_remaining(self) -> Any:
        """Seconds until the client's deadline; None if it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the handler has ended."""
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        """Whether the call has ended without the handler."""
        return self._over and self._task is not None

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
