"""The request as a model sees it, a `starlette.requests.Request` made from a wire row; and the client who sent it.

The body has arrived when the model runs. The frontend reports at once that a client has left.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.types import Message, Scope

from ts.handler_utils.asgi_scope import Pairs, as_bytes, scope_of
from ts.protocol.messages import InferRow


class TrussClient:
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
            for callback in tuple(self._callbacks.values()):
                callback()

    @contextlib.contextmanager
    def calling_when_left(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` when the client leaves inside the ``with`` block; immediately if it has left before."""
        key = object()
        # Registering before checking misses no departure; one between the two steps calls twice, harmlessly.
        self._callbacks[key] = callback
        try:
            if self.left:
                callback()
            yield
        finally:
            del self._callbacks[key]

    @contextlib.contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """Yield an event, for model code in threads, that is set when the client leaves."""
        self.was_asked_for = True
        event = threading.Event()
        with self.calling_when_left(event.set):
            yield event

    async def disconnected(self) -> Message:
        """Wait until the client leaves and return the message of an ASGI server for that."""
        gone = asyncio.Event()
        with self.calling_when_left(gone.set):
            await gone.wait()
        return {"type": "http.disconnect"}


class ModelRequest(Request):
    """The request of one call, for all its steps; ``state.watch_disconnect()`` yields an event: the client has left."""

    def __init__(self, row: InferRow, model_name: str, client: TrussClient) -> None:
        super().__init__(model_scope("http", row.headers, row.content_type, model_name), self._receive_message)
        body = row.body
        if isinstance(body, list):  # parameters taken apart by the endpoint; the raw body is the one without a name
            body = next((value for name, _, value in body if name is None), b"")
        self._whole_body = as_bytes(body)
        self._peer = client
        self._body_given = False
        self.state.watch_disconnect = client.watch

    async def is_disconnected(self) -> bool:
        """Whether the client has left, or was answered."""
        self._peer.was_asked_for = True
        await asyncio.sleep(0)  # a model that blocks the loop between its questions gets the news
        return self._peer.left

    async def _receive_message(self) -> Message:
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self._whole_body, "more_body": False}
        return await self._peer.disconnected()


def model_scope(type_: str, headers: Pairs, content_type: str | None, model_name: str) -> Scope:
    """Return the ASGI scope of a request to the model; ``type_`` is ``http`` or ``websocket``."""
    scope = scope_of(type_, headers, content_type, f"/predictions/{model_name}")
    return {**scope, "path_params": {"model_name": model_name}}


def header(row: InferRow, name: bytes) -> str:
    """Return a header that the client sent; "" if it sent none of that name."""
    value = next((value for key, value in row.headers if type(key) is bytes and key.lower() == name), b"")
    return value.decode("latin-1")
