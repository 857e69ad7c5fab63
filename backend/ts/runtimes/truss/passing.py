"""Responses that a model makes itself (Starlette's, FastAPI's and their kind), passed on with status, headers and body.

Such a response is an ASGI application: it is run here, and what it says is sent on. One whose client leaves is
cancelled, and the iterator that it streams is closed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.to_thread
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from ts.runtimes.truss.answers import CLIENT_ERROR, Answer, Headers, error_headers
from ts.runtimes.truss.client import Client
from ts.runtimes.truss.reply import Reply
from ts.runtimes.truss.request import ModelRequest, disconnected
from ts.runtimes.truss.slots import Slot
from ts.runtimes.truss.threads import MOST_THREADS

#: Headers of the message's framing, which is the server's.
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))
_REDIRECTION = 300


async def pass_on(response: Response, request: ModelRequest, client: Client, reply: Reply, slot: Slot) -> None:
    """Send a response; ``slot`` is given back when its body has ended, or its client has left.

    Raises:
        Exception: Whatever its body raises.
    """
    answer = _PassedOn(client, reply, slot)
    # Starlette reads plain iterators in threads of anyio, of which there are 40 unless somebody says otherwise.
    anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
    limit = asyncio.timeout(None)

    def stop() -> None:
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:
            with client.telling(stop):
                await response(request.scope, answer.receive, answer.send)
    except TimeoutError:
        if not limit.expired():
            raise  # it is the model's own
    finally:
        await _close_body(response)
        slot.release()


async def _close_body(response: Response) -> None:
    """Have the iterator of a streamed body clean up now, not when its memory is reclaimed."""
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
        """Wait until the client leaves."""
        return await disconnected(self._client)

    async def send(self, message: Message) -> None:
        """Take the head, or a piece of the body."""
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
