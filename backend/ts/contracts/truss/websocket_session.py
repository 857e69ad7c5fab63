"""A WebSocket session: the model reads and writes a `starlette.websockets.WebSocket`.

Its frames are inputs and parts of one job. The session is accepted before the model is called; what the model has not
closed when it returns is closed then.
"""

import asyncio
import logging
import struct
from typing import Final

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.async_calls.async_runtime import FurtherInputs, is_cancelled
from ts.contracts.truss.model_request import TrussClient, model_scope
from ts.contracts.truss.reply import MODEL_FAILED, Reply
from ts.contracts.truss.served_model import ServedTruss
from ts.contracts.truss.signatures import Method
from ts.contracts.truss.websocket_frames import BYTES, CLOSE, TEXT
from ts.jobs.errors import users_traceback
from ts.protocol.messages import TAKEN, InferRow

logger = logging.getLogger(__name__)

_SWITCHING_PROTOCOLS: Final = 101
_CODE: Final = struct.Struct(">H")
_NORMAL, _CANNOT_ACCEPT, _BROKEN, _FAILED = 1000, 1003, 1006, 1011
_NOT_IMPLEMENTED: Final = "WebSocket is not implemented on this deployment."


class TrussSession:
    """One session."""

    def __init__(
        self,
        model: ServedTruss,
        row: InferRow,
        inputs: FurtherInputs,
        client: TrussClient,
        connection: FrontendConnection,
        reply: Reply,
    ) -> None:
        self._method = model.description.websocket
        self._job_id = row.job_id
        self._inputs = inputs
        self._client = client
        self._connection = connection
        self._reply = reply
        self._connected = False
        self._websocket = WebSocket(
            model_scope("websocket", row.headers, row.content_type, model.name), self._receive, self._send
        )

    async def run(self) -> None:
        """Accept the session, have the model hold it, and close it."""
        with self._client.calling_when_left(self._inputs.end):
            await self._websocket.accept()
            if self._method is None:
                logger.error("A client wants a WebSocket session, and the model has no websocket method.")
                await self._close(_CANNOT_ACCEPT, _NOT_IMPLEMENTED)
            else:
                await self._hold(self._method)
        self._reply.end(200, ())

    async def _hold(self, method: Method) -> None:
        try:
            await method.function(self._websocket)
        except WebSocketDisconnect as error:
            logger.info("The client has closed the WebSocket session (code %s).", error.code)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            logger.error(MODEL_FAILED, exc_info=(type(error), error, users_traceback(error)))
            await self._close(_FAILED, MODEL_FAILED)
            return
        await self._close(_NORMAL, "")

    async def _close(self, code: int, reason: str) -> None:
        states = (self._websocket.client_state, self._websocket.application_state)
        if all(state is WebSocketState.CONNECTED for state in states):
            await self._websocket.close(code, reason)

    async def _receive(self) -> Message:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        frame = await self._inputs.take()
        if frame is None:
            return {"type": "websocket.disconnect", "code": _BROKEN, "reason": ""}
        self._connection.send([TAKEN, self._job_id, 1])
        kind, payload = frame[:1], bytes(memoryview(frame)[1:])
        if kind == TEXT:
            return {"type": "websocket.receive", "text": payload.decode()}
        if kind == BYTES:
            return {"type": "websocket.receive", "bytes": payload}
        if kind == CLOSE:
            (code,) = _CODE.unpack_from(payload)
            reason = payload[_CODE.size :].decode()
            return {"type": "websocket.disconnect", "code": code, "reason": reason}
        raise ValueError(f"a WebSocket frame of unknown kind {kind!r}")

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "websocket.accept":
                headers = [
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())
                ]
                self._reply.part(_SWITCHING_PROTOCOLS, headers, b"")
            case "websocket.send":
                text = message.get("text")
                frame = BYTES + message["bytes"] if text is None else TEXT + text.encode()
                self._reply.part(200, (), frame)
            case "websocket.close":
                reason = (message.get("reason") or "").encode()
                self._reply.part(200, (), CLOSE + _CODE.pack(message.get("code", _NORMAL)) + reason)
        if not self._client.left:
            await asyncio.sleep(0)  # a session that only writes must not hold up the others
