"""Sends Starlette (and FastAPI) responses that a model creates itself, with their status, headers and body.

Such a response is an ASGI application: this module runs it and forwards its messages. When the client leaves, the
response is cancelled and its body's iterator is closed.
"""

import asyncio

import anyio.to_thread
from starlette.responses import Response, StreamingResponse

from ts.protocol.frames import Buffer
from ts.runtimes.asgi_scope import response_sender
from ts.runtimes.truss.model_request import Client, ModelRequest
from ts.runtimes.truss.reply import CLIENT_ERROR, Answer, Headers, Reply, error_headers
from ts.runtimes.truss.slots import Slot
from ts.runtimes.truss.threads import MOST_THREADS

_REDIRECTION = 300


async def pass_on(response: Response, request: ModelRequest, client: Client, reply: Reply, slot: Slot) -> None:
    """Send a response; release ``slot`` at its end. Raises Exception: the response's body raised it."""

    def take(more: bool, status: int, headers: Headers, body: Buffer) -> None:
        if client.left:
            return
        if status >= _REDIRECTION:
            headers = (*headers, *error_headers(CLIENT_ERROR))
        if more:
            reply.part(status, headers, body)
            return
        if reply.begun:
            reply.part(status, (), body)
            reply.end(status, ())
        else:
            reply.whole(Answer(status, headers, body))
        slot.release()

    # Starlette reads plain iterators in anyio's threads, whose default limit is 40.
    anyio.to_thread.current_default_thread_limiter().total_tokens = MOST_THREADS
    limit = asyncio.timeout(None)

    def stop() -> None:
        if not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with limit:
            with client.calling_when_left(stop):
                await response(request.scope, client.disconnected, response_sender(take))
    except TimeoutError:
        if not limit.expired():
            raise  # the model's own code raised this error
    finally:
        if isinstance(response, StreamingResponse) and hasattr(response.body_iterator, "aclose"):
            await response.body_iterator.aclose()  # now, instead of leaving that to the garbage collector
        slot.release()
