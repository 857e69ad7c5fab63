"""Server-sent events: an answer that goes on until the page leaves, its key expires, or the server closes its doors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import orjson

from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.responses import EVENTS_TYPE, Sent
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.transport.http1.errors import ReaderStalled

if TYPE_CHECKING:
    from torchserve_py.doors.routing import DoorContext
    from torchserve_py.transport.http1.request import Request

_HEADERS: Final = (EVENTS_TYPE, ("x-accel-buffering", "no"))

#: The name of an event, and its data; None keeps the connection alive.
Event = tuple[str, Any] | None


async def send_events(context: DoorContext, request: Request, events: AsyncGenerator[Event, None]) -> Sent:
    """Answer with the events. Before each of them the page's key is checked again."""
    sent = context.responses.start_stream(request, 200, _HEADERS)
    async with contextlib.aclosing(events):
        with contextlib.suppress(ReaderStalled):
            async for event in events:
                if not _may_go_on(context, request):
                    request.send([_encoded(("expired", None))], last=True)
                    return sent._replace(is_quiet=True)
                request.send([_encoded(event)])
                if request.is_reader_slow:
                    await request.drained()
            request.send((), last=True)
    return sent._replace(is_quiet=True)


def _may_go_on(context: DoorContext, request: Request) -> bool:
    if context.tokens is None:
        return True
    try:
        context.tokens.check(TokenType.management, request.headers.get("Authorization"))
    except DoorError:
        return False
    return True


def _encoded(event: Event) -> tuple[bytes, ...]:
    if event is None:
        return (b":\n\n",)
    name, data = event
    return (b"event: ", name.encode(), b"\ndata: ", orjson.dumps(data, default=str), b"\n\n")
