"""A streamed answer: one chunk for each part, and a connection that breaks where the stream does.

HTTP has no way to say "an error" once a response has begun. A stream that fails is therefore left without its last
chunk, which every HTTP client reports as an incomplete answer.
"""

from __future__ import annotations

import logging

from torchserve_py.api.access_log import ids_of
from torchserve_py.api.responses import Headers, Responses, Sent
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.request import Request
from torchserve_py.workers.parts import JobFailed, Part, Parts

logger = logging.getLogger(__name__)

_STREAM_HEADER = "ts_stream_next"
#: Parts that have piled up are written together, up to this many bytes; the rest stays where it is counted and bounded.
_WRITE_SIZE = 16 * 1024


async def send_stream(
    responses: Responses,
    request: Request,
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
    headers = [*headers]
    if announced and not any(name.lower() == _STREAM_HEADER for name, _ in headers):
        headers.append((_STREAM_HEADER, "true"))
    sent = responses.start_stream(request, first.status, headers, reason=first.reason, request_id=parts.job.id)
    if request.is_answered:  # nothing but the head was asked for
        return sent
    request.send(((first.body,),), last=not first.more)
    part = first
    try:
        while part.more:
            if request.is_reader_slow:
                await request.drained()
            arrived = (await parts.next(), *parts.take_arrived(_WRITE_SIZE))
            part = arrived[-1]
            whole = arrived if part.error is None else arrived[:-1]
            request.send([(each.body,) for each in whole], last=part.error is None and not part.more)
            if part.error is not None:
                request.break_off()
    except ReaderStalled:
        return sent  # its connection is gone, and was logged
    except ConnectionError:
        raise  # the client is gone
    except Exception as error:
        if not isinstance(error, JobFailed):
            logger.error("Request %s failed within its stream.", parts.job.id, exc_info=error, extra=ids_of(parts))
        request.break_off()
    return sent
