"""Requests that an application inside the worker answers: whole bodies in any number of pieces, and streams."""

from typing import Any

import pytest

from ts.context import Context, RequestProcessor
from ts.handler_utils.asgi import answer


def context_of(parts: list[bytes]) -> Context:
    """Return the context of one request; ``parts`` gets what is sent before the last part."""
    context = Context("m", "", None, 1, None, "1")
    context.request_ids, context.request_processor = {0: "id"}, [RequestProcessor({})]
    context.send_part = lambda ret, ids, message, code: parts.extend(ret)
    return context


@pytest.mark.parametrize(
    ("headers", "sent", "last"),
    [
        ([(b"content-length", b"3"), (b"content-type", b"text/x")], [], b"abc"),
        ([(b"content-type", b"text/x")], [b"a", b"b"], b"c"),
    ],
)
async def test_only_a_body_of_unknown_length_is_a_stream(
    headers: list[tuple[bytes, bytes]], sent: list[bytes], last: bytes
) -> None:
    received: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        received.append((scope["method"], scope["path"], await receive()))
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        for piece, more in ((b"a", True), (b"b", True), (b"", True), (b"c", False)):
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    parts: list[bytes] = []
    context = context_of(parts)
    assert await answer(application, "v1/x", {"a": 1}, context) == last
    assert parts == sent
    assert received == [("POST", "/v1/x", {"type": "http.request", "body": b'{"a": 1}', "more_body": False})]
    assert context.get_response_status(0)[0] == 201
    assert context.get_response_content_type(0) == "text/x"
