"""Sends Starlette (and FastAPI) responses that a model creates itself, with their status, headers and body.

Such a response is an ASGI application: this module runs it and forwards its messages. When the client leaves, the
response is cancelled and its body's iterator is closed.
"""

import asyncio
from typing import Any

import anyio.to_thread
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from ts.runtimes.truss.model_request import Client, ModelRequest
from ts.runtimes.truss.reply import CLIENT_ERROR, Answer, Headers, Reply, error_headers
from ts.runtimes.truss.slots import Slot
from ts.runtimes.truss.threads import MOST_THREADS

#: Headers of the message's framing, which the server sets itself.
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))
_REDIRECTION = 300


async def pass_on(response: Response, request: ModelRequest, client: Client, reply: Reply, slot: Slot) -> None:
    """Send a response; release ``slot`` at its end. Raises Exception: the response's body raised it."""
    answer = _PassedOn(client, reply, slot)
    # Starlette reads plain iterators in anyio's threads, whose default limit is 40.
    anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
    limit = asyncio.timeout(None)

    def stop() -> None:
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:
            with client.calling_when_left(stop):
                await response(request.scope, answer.receive, answer.send)
    except TimeoutError:
        if not limit.expired():
            raise  # the model's own code raised this error
    finally:
        await _close_body(response)
        slot.release()


async def _close_body(response: Response) -> None:
    """Close the iterator of a streamed body now, instead of leaving that to the garbage collector."""
    if isinstance(response, StreamingResponse):
        close: Any = getattr(response.body_iterator, "aclose", None)
        if close is not None:
            await close()


class _PassedOn:
    """The server's side of a response as ASGI wants it."""

    def __init__(self, client: Client, reply: Reply, slot: Slot) -> None:
        self._client = client
        self._reply = reply
        self._slot = slot
        self._status = 200
        self._headers: Headers = ()

    async def receive(self) -> Message:
        return await self._client.disconnected()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = _headers(message)
        elif message["type"] == "http.response.body":
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
            await asyncio.sleep(0)  # a body that never waits must not hold up the others

    def _send_body(self, body: bytes | memoryview, *, more: bool) -> None:
        if self._client.left:
            return
        if more:
            self._reply.part(self._status, self._headers, body)
            return
        if self._reply.begun:
            self._reply.part(self._status, (), body)
            self._reply.end(self._status, ())
        else:
            self._reply.whole(Answer(self._status, self._headers, body))
        self._slot.release()


def _headers(message: Message) -> Headers:
    headers = [
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in message.get("headers", ())
        if name.lower() not in _FRAMING
    ]
    if message["status"] >= _REDIRECTION:
        headers += error_headers(CLIENT_ERROR)
    return headers
