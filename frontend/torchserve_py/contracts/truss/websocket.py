"""A WebSocket between a client and the `websocket` method of a Truss.

It is a job that takes several inputs. Each of its inputs and parts is one frame of the socket, behind a byte that tells
its kind (`ts.contracts.truss.websocket_frames`). The handshake is accepted when the worker says so.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from torchserve_py.base.causes import Cause
from torchserve_py.contracts.truss.truss_dialect import MODEL_FAILED, TrussDialect
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.responses import ALREADY_SENT, AlreadySent, Answer
from torchserve_py.net.http1.errors import ReaderStalled
from torchserve_py.net.running_time import running_time
from torchserve_py.net.websocket import Kind, WebSocket
from ts.contracts.truss import websocket_frames as frames

logger = logging.getLogger(__name__)

_SWITCHING_PROTOCOLS: Final = 101
_PING_TIMEOUT: Final = b"keepalive ping timeout"
_OK: Final = 1000
_INTERNAL_ERROR: Final = 1011
_SERVICE_RESTART: Final = 1012
#: Seconds between pings, and for the answer to one, unless the model's configuration says otherwise.
_PING_INTERVAL: Final = 20.0
_PING_LIMIT: Final = 20.0
#: Seconds within which a client must confirm that the connection is closed.
_CLOSE_LIMIT: Final = 5.0


class WebSocketDialect(TrussDialect):
    """Answers the client of one socket as Truss does, and in frames once the model has accepted the handshake.

    ``intervals`` is what the model declares of pings and their limits.
    """

    def __init__(self, socket: WebSocket, intervals: Mapping[str, Any]) -> None:
        self._socket = socket
        self._intervals = intervals
        self._pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Whether the client's frames are read now; while the model is busy they are not, and a pong may be unread.
        self._reading = True

    def reply(self, call: HttpCall, first: Part) -> Answer | Coroutine[Any, Any, Answer | AlreadySent]:
        """Serve the socket, if the model accepts the handshake."""
        if first.status == _SWITCHING_PROTOCOLS and first.more:
            return self._serve(call, first)
        return super().reply(call, first)

    async def _serve(self, call: Call, first: Part) -> AlreadySent:
        """Carry frames both ways until the job has ended; then the socket is closed."""
        helpers: list[asyncio.Task[None]] = []
        try:
            self._socket.accept(first.headers)
            helpers += [asyncio.create_task(self._receive(call)), asyncio.create_task(self._keep_alive())]
            await self._send(call)
        except (ConnectionError, ReaderStalled):
            logger.debug("The client of request %s is gone", call.id)
        finally:
            call.cancel()  # does nothing to a job that has ended
            for helper in helpers:
                helper.cancel()
            if helpers:
                await asyncio.wait(helpers)
        return ALREADY_SENT

    async def _send(self, call: Call) -> None:
        """Pass on what the model sends, to the last part."""
        more = True
        while more:
            try:
                part = await call.next()
            except JobFailed as failed:
                await self._close(*_farewell(failed.cause))
                return
            more = part.more
            if part.error is not None:
                await self._close(_INTERNAL_ERROR, MODEL_FAILED.encode())
            elif part.body:
                await self._send_frame(part)
        await self._close(_OK, b"")

    async def _send_frame(self, part: Part) -> None:
        kind, payload = part.body[:1], bytes(memoryview(part.body)[1:])
        if kind == frames.CLOSE:
            await self._close(int.from_bytes(payload[:2], "big"), payload[2:])
        else:
            await self._socket.send(payload, is_text=kind == frames.TEXT)

    async def _receive(self, call: Call) -> None:
        """Pass on what the client sends, to its close."""
        while True:
            message = await self._socket.receive()
            match message.kind:
                case Kind.text:
                    await self._pass_on(call, frames.TEXT + message.data)
                case Kind.binary:
                    await self._pass_on(call, frames.BYTES + message.data)
                case Kind.pong:
                    if not self._pong.done():
                        self._pong.set_result(None)
                case Kind.close:
                    body = frames.CLOSE + message.code.to_bytes(2, "big") + message.data
                    await call.send_input(body, more=False)
                    return

    async def _pass_on(self, call: Call, body: bytes) -> None:
        self._reading = False
        await call.send_input(body, more=True)
        self._reading = True

    async def _keep_alive(self) -> None:
        """Ping the client, and close the socket if the client neither answers nor sends anything else."""
        interval = self._intervals.get("ping_interval_seconds") or _PING_INTERVAL
        limit = self._intervals.get("ping_timeout_seconds") or _PING_LIMIT
        loop, clock = asyncio.get_running_loop(), running_time()
        while True:
            await asyncio.sleep(interval)
            self._pong, pinged_at = loop.create_future(), clock.now()
            self._socket.ping()
            await clock.wait([self._pong], limit)
            if not self._pong.done() and self._reading and self._socket.heard_at < pinged_at:
                await self._close(_INTERNAL_ERROR, _PING_TIMEOUT)
                return

    async def _close(self, code: int, reason: bytes) -> None:
        await self._socket.close(code, reason, _CLOSE_LIMIT)


def _farewell(cause: Cause) -> tuple[int, bytes]:
    """Return the close code and reason for the client of a job that ended without an answer."""
    if cause in (Cause.draining, Cause.interrupted, Cause.unregistered):
        return _SERVICE_RESTART, b"The server is shutting down, or the model was unregistered."
    return _INTERNAL_ERROR, MODEL_FAILED.encode()
