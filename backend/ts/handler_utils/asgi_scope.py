"""A wire row as a request to an ASGI application, and the application's response as parts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow

Pairs = Iterable[tuple[Any, Any]]
Message = MutableMapping[str, Any]


def scope_of(type_: str, headers: Pairs, content_type: str | None = None, default_path: str = "/") -> dict[str, Any]:
    """Return the ASGI scope of a request; ``type_`` is ``http`` or ``websocket``.

    Args:
        headers: The row's headers; pseudo headers (``:path``, ``:method`` …) describe the request itself.
        content_type: The media type of the body, used if it is not among the headers.
    """
    pseudo: dict[str, str] = {}
    sent: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if isinstance(name, str) and name.startswith(":"):
            pseudo[name] = value
        else:
            sent.append((as_bytes(name).lower(), as_bytes(value)))
    if content_type and not any(name == b"content-type" for name, _ in sent):
        sent.append((b"content-type", as_bytes(content_type)))
    path, _, query = pseudo.get(":path", default_path).partition("?")
    return {
        "type": type_,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": pseudo.get(":method", "POST"),
        "scheme": pseudo.get(":scheme", "http"),
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent,
        "client": _address(pseudo.get(":client")),
        "server": _address(pseudo.get(":authority")),
        "state": {},
        "subprotocols": [],
    }


#: Takes a part of a response: whether more follow, status, headers and body.
TakePart = Callable[[bool, int, list[tuple[str, str]], Buffer], None]

#: Headers of a message's framing, which the server sets itself.
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding", b"connection"))


def response_sender(take: TakePart) -> Callable[[Message], Awaitable[None]]:
    """Return what an application sends its response with; ``take`` gets each piece of the body with the head."""
    status, headers = 200, list[tuple[str, str]]()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in message.get("headers", ())
                if name.lower() not in _FRAMING
            ]
        elif message["type"] == "http.response.body":
            take(bool(message.get("more_body")), status, headers, message.get("body", b""))
            await asyncio.sleep(0)  # a body that never waits must not hold up the others

    return send


def receive_once(body: bytes) -> Callable[[], Awaitable[Message]]:
    """Return what an application receives: the body, then nothing. A client that leaves cancels the call."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.get_running_loop().create_future()
        return messages.pop()

    return receive


def pseudo_header(row: InferRow, name: str) -> str | None:
    """Return a pseudo header of a row, or None."""
    for key, value in reversed(row.headers):  # they are behind those of the client
        if key == name:
            return value  # type: ignore[no-any-return]
    return None


def as_bytes(value: Any) -> bytes:
    """Return a header's name or value, or a body, as bytes."""
    return bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode()


def _address(text: str | None) -> tuple[str, int | None] | None:
    """Return host and port; IPv6 addresses are in brackets."""
    if not text:
        return None
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        host, port = text, ""
    return host.strip("[]"), int(port) if port else None
