"""A request to a model with an asynchronous handler, answered by an ASGI application inside the worker.

The application's status and content type are the response's, the parts of a stream leave as the application sends them.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ts.context import Context
from ts.handler_utils.asgi_scope import Message, receive_once, response_sender, scope_of
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.protocol.frames import Buffer
from ts.protocol.media_types import JSON

#: As the ASGI specification has it: ``await application(scope, receive, send)``.
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


async def answer(application: Application, path: str, body: Any, context: Context) -> bytes:
    """Have the application answer the one request of ``context``; return what the handler is to return for it.

    The body is bytes, text, or the value of a JSON body; None for a request without a body, which is a GET.
    """
    content, last = _encode(body), bytearray()
    ids = context.request_ids or {}
    is_whole = False  # the application has told the length of the body, which middleware may yet send in pieces

    def take(more: bool, status: int, headers: list[tuple[str, str]], part: Buffer) -> None:
        context.set_response_status(status, "", 0)
        context.set_response_content_type(0, dict(headers).get("content-type", JSON))
        if is_whole or not more:
            last.extend(part)
        elif part:
            send_intermediate_predict_response([bytes(part)], ids, "OK", 200, context)

    pass_on = response_sender(take)

    async def send(message: Message) -> None:
        nonlocal is_whole
        if message["type"] == "http.response.start":
            is_whole = b"content-length" in dict(message.get("headers") or ())
        await pass_on(message)

    await application(_scope(path, context.get_request_id(0), content), receive_once(content), send)
    return bytes(last)


def _encode(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def _scope(path: str, request_id: str | None, body: bytes) -> dict[str, Any]:
    """Return the ASGI scope of a request. The worker does not know the method: without a body it can only be GET."""
    headers: list[tuple[Any, Any]] = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    if body:
        headers.append((b"content-type", JSON.encode()))
    if request_id:
        headers.append((b"x-request-id", request_id.encode()))
    return scope_of("http", [*headers, (":method", "POST" if body else "GET"), (":path", f"/{path}")])
