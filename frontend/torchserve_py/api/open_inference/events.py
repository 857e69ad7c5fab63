"""Streams of responses as server-sent events: ``data: `` and one line of JSON for each, and nothing else.

Before the first event an error is an answer of its own, with its status. Afterwards it is one last event
``{"error": …}``. Either way the body ends as a body should: that is how clients know that nothing more comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from torchserve_py.api.errors import Failure
from torchserve_py.api.open_inference.answers import error_body
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.request import Request
from torchserve_py.workers.parts import JobFailed, Part, Parts

logger = logging.getLogger(__name__)

_TYPE: Final = ("content-type", "text/event-stream; charset=utf-8")
#: Headers of the first response that describe a body which is not sent.
_BODY_HEADERS: Final = frozenset(("content-type", "content-length", "content-encoding"))
#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE: Final = 16 * 1024


async def send_events(
    responses: Responses,
    request: Request,
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
    headers = [_TYPE, *((name, value) for name, value in first.headers if name.lower() not in _BODY_HEADERS)]
    sent = responses.start_stream(request, 200, headers, request_id=parts.job.id)
    if request.is_answered:  # nothing but the head was asked for
        return sent
    request.send(_events((first,)), last=not first.more)
    part = first
    try:
        while part.more:
            if request.is_reader_slow:
                await request.drained()
            arrived = (await parts.next(), *parts.take_arrived(_WRITE_SIZE))
            part = arrived[-1]
            request.send(_events(arrived), last=not part.more)
    except ReaderStalled:
        return sent  # its connection is gone, and was logged
    except JobFailed as failed:
        failure = failure_of_cause(failed.cause)
        request.send((_event(error_body(failure.message, failure.status)),), last=True)
    return sent


def _events(parts: Iterable[Part]) -> list[tuple[bytes, ...]]:
    """The events of some parts; a part without a body is none."""
    bodies = (part.body if part.error is None else error_body(part.error, part.status) for part in parts)
    return [_event(body) for body in bodies if body]


def _event(body: bytes) -> tuple[bytes, ...]:
    return (b"data: ", body, b"\n\n")
