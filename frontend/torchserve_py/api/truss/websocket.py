"""A WebSocket between a client and the `websocket` method of a Truss.

It is a job that takes several inputs. Each of its inputs and parts is one frame of the socket, behind a byte that tells
its kind (`ts.protocol.websocket_frames`). The handshake is accepted when the worker says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from aiohttp import WSCloseCode, WSMsgType, hdrs, web

from torchserve_py.api.truss.answers import MODEL_FAILED, Answers
from torchserve_py.api.truss.calls import Calls, submit
from torchserve_py.api.truss.targets import Endpoint
from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.parts import JobFailed, Part, Parts
from ts.protocol import websocket_frames as frames

if TYPE_CHECKING:
    from torchserve_py.models.model import Model

logger = logging.getLogger(__name__)

_SWITCHING_PROTOCOLS: Final = 101
_PING_TIMEOUT: Final = b"keepalive ping timeout"
_NO_STATUS: Final = 1005
#: Codes that stand for what happened and are never sent.
_NEVER_SENT: Final = frozenset({_NO_STATUS, WSCloseCode.ABNORMAL_CLOSURE})
#: Seconds between pings, and for the answer to one, unless the model's configuration says otherwise.
_PING_INTERVAL: Final = 20.0
_PING_LIMIT: Final = 20.0
#: How long a client may take to answer that the connection is closed.
_CLOSE_LIMIT: Final = 5.0


class Sockets:
    """Serves WebSockets."""

    def __init__(self, answers: Answers, calls: Calls, max_message_size: int) -> None:
        self._answers = answers
        self._calls = calls
        self._max_message_size = max_message_size

    async def serve(self, request: web.BaseRequest, model: Model) -> web.StreamResponse:
        """Serve one, from the handshake to its end."""
        socket = web.WebSocketResponse(
            timeout=_CLOSE_LIMIT, autoping=False, autoclose=False, max_msg_size=self._max_message_size
        )
        if request.headers.get(hdrs.UPGRADE, "").lower() != "websocket" or not socket.can_prepare(request).ok:
            return await self._answers.not_found(request)
        parts = submit(request, model, Endpoint.websocket, b"", more_input=True)
        try:
            first = await parts.next()
            if first.status != _SWITCHING_PROTOCOLS or not first.more:
                return await self._calls.refuse(request, model, parts, first)
            for name, value in first.headers:
                socket.headers.add(name, value)
            await socket.prepare(request)
            await _Session(socket, parts, model, request.transport).run()
            return socket
        except JobFailed as failed:
            return await self._answers.job_failed(request, failed.cause, model)
        finally:
            parts.cancel()  # does nothing to a job that has ended


class _Session:
    """An open socket and the job behind it."""

    def __init__(
        self, socket: web.WebSocketResponse, parts: Parts, model: Model, transport: asyncio.Transport | None
    ) -> None:
        self._socket = socket
        self._transport = transport
        self._parts = parts
        self._intervals = model.declared.get("websocket") or {}
        self._pong = asyncio.Event()
        #: Whether the client is read from; while the model has too much to do it is not, and no pong is seen.
        self._reading = True

    async def run(self) -> None:
        """Carry frames both ways until the job has ended; then the socket is closed."""
        helpers = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]
        try:
            await self._send()
        except ConnectionError:
            logger.debug("The client of request %s is gone", self._parts.job.id)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)

    async def _send(self) -> None:
        """Pass on what the model sends, to the last part."""
        more = True
        while more:
            try:
                part = await self._parts.next()
            except JobFailed as failed:
                await self._close(*_farewell(failed.cause))
                return
            more = part.more
            if part.error is not None:
                await self._close(WSCloseCode.INTERNAL_ERROR, MODEL_FAILED.encode())
            elif part.body and not self._socket.closed:
                await self._send_frame(part)
        await self._close(WSCloseCode.OK, b"")

    async def _send_frame(self, part: Part) -> None:
        kind, payload = part.body[:1], part.body[1:]
        if kind == frames.CLOSE:
            await self._close(int.from_bytes(payload[:2], "big"), payload[2:])
        else:
            await self._socket.send_frame(payload, WSMsgType.TEXT if kind == frames.TEXT else WSMsgType.BINARY)

    async def _receive(self) -> None:
        """Pass on what the client sends, to its close."""
        while True:
            message = await self._socket.receive()
            match message.type:
                case WSMsgType.TEXT:
                    await self._pass_on(frames.TEXT + message.data.encode())
                case WSMsgType.BINARY:
                    await self._pass_on(frames.BYTES + message.data)
                case WSMsgType.PING:
                    await self._socket.pong(message.data)
                case WSMsgType.PONG:
                    self._pong.set()
                case WSMsgType.CLOSE:
                    code = message.data or _NO_STATUS
                    await self._closed_by_client(code, (message.extra or "").encode())
                    return
                case _:
                    await self._closed_by_client(WSCloseCode.ABNORMAL_CLOSURE, b"")
                    return

    async def _pass_on(self, body: bytes) -> None:
        self._reading = False
        await self._parts.send_input(body, more=True)
        self._reading = True

    async def _closed_by_client(self, code: int, reason: bytes) -> None:
        await self._parts.send_input(frames.CLOSE + code.to_bytes(2, "big") + reason, more=False)
        answered = WSCloseCode.OK if code in _NEVER_SENT else code
        await self._close(answered, b"")

    async def _keep_alive(self) -> None:
        """Ping the client, and hang up when it does not answer."""
        interval = self._intervals.get("ping_interval_seconds") or _PING_INTERVAL
        limit = self._intervals.get("ping_timeout_seconds") or _PING_LIMIT
        while True:
            await asyncio.sleep(interval)
            self._pong.clear()
            try:
                async with asyncio.timeout(limit):
                    with contextlib.suppress(ConnectionError):
                        await self._socket.ping()  # waits, too, if the client reads nothing
                    await self._pong.wait()
            except TimeoutError:
                if self._reading:
                    await self._close(WSCloseCode.INTERNAL_ERROR, _PING_TIMEOUT)
                    return

    async def _close(self, code: int, reason: bytes) -> None:
        if self._socket.closed:
            return
        try:
            async with asyncio.timeout(2 * _CLOSE_LIMIT):
                await self._socket.close(code=code, message=reason)
        except TimeoutError:  # the client does not even make room for that
            if self._transport is not None:
                self._transport.abort()


def _farewell(cause: Cause) -> tuple[int, bytes]:
    """What the client of a job that was ended is told."""
    if cause in (Cause.draining, Cause.unregistered):
        return WSCloseCode.SERVICE_RESTART, b"The server is shutting down, or the model was unregistered."
    return WSCloseCode.INTERNAL_ERROR, MODEL_FAILED.encode()
