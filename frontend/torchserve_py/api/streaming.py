"""A streamed answer: one chunk for each part, and a connection that breaks where the stream does.

HTTP has no way to say "an error" once a response has begun. A stream that fails is therefore left without its last
chunk, which every HTTP client reports as an incomplete answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aiohttp.http import HttpVersion11

from torchserve_py.api.access_log import ids_of
from torchserve_py.api.requests import HttpRequest
from torchserve_py.api.responses import Headers, ReaderStalledError, Responses, Sent, reset
from torchserve_py.workers.parts import JobFailed, Part, Parts

logger = logging.getLogger(__name__)

_STREAM_HEADER = "ts_stream_next"
_LAST_CHUNK = b"0\r\n\r\n"
#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE = 16 * 1024


async def send_stream(
    responses: Responses,
    request: HttpRequest,
    parts: Parts,
    first: Part,
    headers: Headers,
    *,
    announced: bool = True,
) -> Sent:
    """Answer with ``first`` and every part that follows it; ``announced`` with TorchServe's header for streams.

    Waits for the client after each write, so that a slow reader slows the stream down and fills no memory. A client
    that reads nothing for too long is dropped; the caller cancels the job.

    Raises:
        DoorError: The status or a header of the first part is not one that HTTP allows; nothing was written.
    """
    chunked = request.version >= HttpVersion11
    keep_alive = chunked and request.keep_alive
    headers = [*headers]
    if announced and not any(name.lower() == _STREAM_HEADER for name, _ in headers):
        headers.append((_STREAM_HEADER, "true"))
    framing = "transfer-encoding: chunked\r\n" if chunked else ""
    head = responses.head(
        first.status, keep_alive, headers, framing=framing, reason=first.reason, request_id=parts.job.id
    )
    sent = responses.sent(first.status, keep_alive)
    if request.method == "HEAD" or first.status in (204, 304):
        _write(request, (head,))
        return sent
    _write(request, (head, *_chunk(first, chunked)))
    part = first
    try:
        while part.more:
            if request.protocol.writing_paused:
                await responses.drained(request)
            arrived = (await parts.next(), *parts.take_arrived(_WRITE_SIZE))
            part = arrived[-1]
            whole = arrived if part.error is None else arrived[:-1]
            _write(request, [piece for each in whole for piece in _chunk(each, chunked)])
            if part.error is not None:
                return _break_off(request, first.status, chunked)
        if request.protocol.writing_paused:
            await responses.drained(request)
    except ReaderStalledError:
        return responses.give_up(request, first.status)
    except ConnectionError:
        raise  # the client is gone
    except Exception as error:
        if not isinstance(error, JobFailed):
            logger.error("Request %s failed within its stream.", parts.job.id, exc_info=error, extra=ids_of(parts))
        return _break_off(request, first.status, chunked)
    return sent


def _chunk(part: Part, chunked: bool) -> tuple[bytes, ...]:
    body = part.body
    if not chunked:
        return (body,)
    if not body:  # a chunk of no bytes would end the stream
        return () if part.more else (_LAST_CHUNK,)
    size = b"%x\r\n" % len(body)
    return (size, body, b"\r\n") if part.more else (size, body, b"\r\n" + _LAST_CHUNK)


def _write(request: HttpRequest, pieces: Sequence[bytes]) -> None:
    transport = request.transport
    if pieces and transport is not None and not transport.is_closing():
        transport.write(b"".join(pieces))


def _break_off(request: HttpRequest, status: int, chunked: bool) -> Sent:
    """End the stream so that the client sees that it is incomplete."""
    if not chunked:
        reset(request.transport)  # without chunks an orderly close would look like the end of the stream
    elif request.transport is not None:
        request.transport.close()  # what was written still arrives; the missing last chunk tells the rest
    return Sent(status, keep_alive=False)
