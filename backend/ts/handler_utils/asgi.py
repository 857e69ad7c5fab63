"""A request to a model with an asynchronous handler, answered by an ASGI application inside the worker.

The application's status and content type are the response's, the parts of a stream leave as the application sends them.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ts.context import Context
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.runtimes.asgi_scope import Message, receive_once, scope_of

#: As the ASGI specification has it: ``await application(scope, receive, send)``.
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


async def answer(application: Application, path: str, body: Any, context: Context) -> bytes:
    """Have the application answer the one request of ``context``; return what the handler is to return for it.

    Args:
        body: Bytes, text, or the value of a JSON body; None for a request without a body, which is a GET.
    """
    content = _encode(body)
    response = _Response(context)
    await application(_scope(path, context.get_request_id(0), content), receive_once(content), response.send)
    return bytes(response.last)


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
        headers.append((b"content-type", b"application/json"))
    if request_id:
        headers.append((b"x-request-id", request_id.encode()))
    return scope_of("http", [*headers, (":method", "POST" if body else "GET"), (":path", f"/{path}")])


class _Response:
    """Sends the parts of a stream as they come, and collects a body of known length."""

    def __init__(self, context: Context) -> None:
        self.last = bytearray()
        self._context = context
        self._ids = context.request_ids or {}
        self._streaming = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start(message["status"], dict(message.get("headers") or ()))
        elif message["type"] == "http.response.body" and (body := message.get("body")):
            if self._streaming:
                send_intermediate_predict_response([bytes(body)], self._ids, "OK", 200, self._context)
            else:
                self.last += body

    def _start(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._context.set_response_status(status, "", 0)
        self._context.set_response_content_type(0, headers.get(b"content-type", b"application/json").decode())
        self._streaming = b"content-length" not in headers
