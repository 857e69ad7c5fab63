"""Streams of responses as server-sent events: ``data: `` and one line of JSON for each, and nothing else.

Before the first event an error is an answer of its own, with its status. Afterwards it is one last event
``{"error": …}``. Either way the body ends as a body should: that is how clients know that nothing more comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp.http import HttpVersion11

from torchserve_py.api.errors import Failure
from torchserve_py.api.open_inference.answers import error_body
from torchserve_py.api.requests import HttpRequest
from torchserve_py.api.responses import ReaderStalledError, Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.parts import JobFailed, Part, Parts

logger = logging.getLogger(__name__)

_TYPE: Final = ("content-type", "text/event-stream; charset=utf-8")
_LAST_CHUNK: Final = b"0\r\n\r\n"
#: Headers of the first response that describe a body which is not sent.
_BODY_HEADERS: Final = frozenset(("content-type", "content-length", "content-encoding"))
#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE: Final = 16 * 1024


async def send_events(
    responses: Responses,
    request: HttpRequest,
    parts: Parts,
    first: Part,
    failure_of_cause: Callable[[Cause], Failure],
) -> Sent:
    """Answer with ``first`` and every part that follows it, each an event.

    Waits for the client after each write, so that a slow reader slows the stream down and fills no memory.

    Args:
        responses: Writes heads.
        request: What is answered.
        parts: The parts.
        first: The first of them, which is no error.
        failure_of_cause: What the client is told if the job ends without the rest.

    Raises:
        DoorError: A header of the first part is not one that HTTP allows; nothing was written.
    """
    chunked = request.version >= HttpVersion11
    keep_alive = chunked and request.keep_alive
    headers = [_TYPE, *((name, value) for name, value in first.headers if name.lower() not in _BODY_HEADERS)]
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    head = responses.head(200, keep_alive, headers, framing=framing, request_id=parts.job.id)
    sent = responses.sent(200, keep_alive)
    write = _Writer(request, chunked)
    write((head,), (first,))
    part = first
    try:
        while part.more:
            if request.protocol.writing_paused:
                await responses.drained(request)
            arrived = (await parts.next(), *parts.take_arrived(_WRITE_SIZE))
            part = arrived[-1]
            write((), arrived)
        if request.protocol.writing_paused:
            await responses.drained(request)
    except ReaderStalledError:
        return responses.give_up(request, 200)
    except JobFailed as failed:
        failure = failure_of_cause(failed.cause)
        write.error(failure.message, failure.status)
    return sent


class _Writer:
    """Frames parts as events, and events as chunks."""

    def __init__(self, request: HttpRequest, chunked: bool) -> None:
        self._request = request
        self._chunked = chunked

    def __call__(self, head: Iterable[bytes], parts: Iterable[Part]) -> None:
        """Write the events of some parts; a part without a body is none."""
        pieces = [*head]
        for part in parts:
            body = part.body if part.error is None else error_body(part.error, part.status)
            if body:
                pieces += self._event(body)
            if not part.more and self._chunked:
                pieces.append(_LAST_CHUNK)
        self._write(pieces)

    def error(self, message: str, status: int) -> None:
        """Write the last event: what went wrong."""
        self._write([*self._event(error_body(message, status)), *((_LAST_CHUNK,) if self._chunked else ())])

    def _event(self, body: bytes) -> tuple[bytes, ...]:
        event = (b"data: ", body, b"\n\n")
        return (b"%x\r\n" % (len(body) + 8), *event, b"\r\n") if self._chunked else event

    def _write(self, pieces: list[bytes]) -> None:
        transport = self._request.transport
        if pieces and transport is not None and not transport.is_closing():
            transport.write(b"".join(pieces))
