"""The request as a model sees it: a `starlette.requests.Request`, made from a wire row.

The body has arrived when the model runs; whether the client is still there, the frontend tells the moment it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import Message, Scope

from ts.protocol.messages import InferRow

Pairs = Iterable[tuple[Any, Any]]


class ModelRequest(Request):
    """The request of one call, the same object for all its steps.

    ``state.watch_disconnect()`` is a context manager with a `threading.Event` that is set when the client leaves.
    """

    def __init__(self, scope: Scope, body: bytes, client: Client) -> None:
        super().__init__(scope, self._receive_message)
        self._whole_body = body
        self._peer = client
        self._body_given = False
        self.state.watch_disconnect = client.watch

    async def is_disconnected(self) -> bool:
        """Whether the client has left, or was answered."""
        self._peer.was_asked_for = True
        return self._peer.left

    async def _receive_message(self) -> Message:
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self._whole_body, "more_body": False}
        return await disconnected(self._peer)


async def disconnected(client: Client) -> Message:
    """Wait until the client leaves and return what an ASGI server says then."""
    gone = asyncio.Event()
    with client.telling(gone.set):
        await gone.wait()
    return {"type": "http.disconnect"}


def request_of(row: InferRow, model_name: str, client: Client) -> ModelRequest:
    """Return the request that a row is."""
    _, headers, content_type, body, *_ = row
    return ModelRequest(scope_of("http", headers, content_type, model_name), _raw(body), client)


def scope_of(type_: str, headers: Pairs, content_type: str | None, model_name: str) -> Scope:
    """Return the ASGI scope of a request.

    Args:
        type_: ``http`` or ``websocket``.
        headers: The row's; those that the server has set and whose names begin with a colon tell of the request itself.
        content_type: The media type of the body, if it is not among the headers.
    """
    told, sent = _split(headers)
    if content_type and not any(name == b"content-type" for name, _ in sent):
        sent.append((b"content-type", _bytes(content_type)))
    path, _, query = told.get(":path", f"/predictions/{model_name}").partition("?")
    return {
        "type": type_,
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": told.get(":method", "POST"),
        "scheme": told.get(":scheme", "http"),
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent,
        "client": _address(told.get(":client")),
        "server": _address(told.get(":authority")),
        "path_params": {"model_name": model_name},
        "state": {},
        "subprotocols": [],
    }


def pseudo_header(row: InferRow, name: str) -> str | None:
    """Return what the server says of the request under a name that begins with a colon."""
    for key, value in reversed(row[1]):  # they are behind those of the client
        if key == name:
            return value  # type: ignore[no-any-return]
    return None


def header(row: InferRow, name: bytes) -> str:
    """Return a header that the client sent, "" if it sent none of that name."""
    value = next((value for key, value in row[1] if type(key) is bytes and key.lower() == name), b"")
    return value.decode("latin-1")


def _split(headers: Pairs) -> tuple[Mapping[str, str], list[tuple[bytes, bytes]]]:
    told: dict[str, str] = {}
    sent: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if isinstance(name, str) and name.startswith(":"):
            told[name] = value
        else:
            sent.append((_bytes(name).lower(), _bytes(value)))
    return told, sent


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _address(text: str | None) -> tuple[str, int | None] | None:
    """Return host and port; IPv6 addresses are in brackets."""
    if not text:
        return None
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit():
        host, port = text, ""
    return host.strip("[]"), int(port) if port else None


def _raw(body: Any) -> bytes:
    """Return the raw body; that of a row whose parameters the door has taken apart is the one without a name."""
    if isinstance(body, list):
        body = next((value for name, _, value in body if name is None), b"")
    return _bytes(body)


class Client:
    """The client that waits for the answer of one call.

    Only the event loop calls `leave`; any thread may call the other methods.

    Attributes:
        left: Whether the client has left, or the call is over.
        was_asked_for: Whether the model's code has checked for the client, and so handles its departure itself.
    """

    __slots__ = ("_callbacks", "left", "was_asked_for")

    def __init__(self) -> None:
        self.left = False
        self.was_asked_for = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def leave(self) -> None:
        """Record that the client has left and call the callbacks; further calls do nothing."""
        if not self.left:
            self.left = True
            for tell in tuple(self._callbacks.values()):
                tell()

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell`` when the client leaves inside the ``with`` block; immediately if it has left before."""
        key = object()
        # Registering before checking misses no departure; one between the two steps calls ``tell`` twice, harmlessly.
        self._callbacks[key] = tell
        try:
            if self.left:
                tell()
            yield
        finally:
            del self._callbacks[key]

    @contextlib.contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """Yield an event, for model code in threads, that is set when the client leaves."""
        self.was_asked_for = True
        event = threading.Event()
        with self.telling(event.set):
            yield event
