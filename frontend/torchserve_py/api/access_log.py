"""The access log of aiohttp's engine, and which job a request in it became."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from torchserve_py import access_log
from torchserve_py.api.requests import HttpRequest
from torchserve_py.api.responses import QuietSent
from torchserve_py.workers.parts import Parts

#: Where a request keeps the ids that stand in its record.
IDS = web.RequestKey("ids", dict[str, str | None])


class AccessLog(AbstractAccessLogger):
    """What aiohttp calls with each answer."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Note an answer that has been written; ``time`` is the seconds since the request arrived."""
        if isinstance(response, QuietSent):
            return
        client = request.transport.get_extra_info("peername") if request.transport is not None else None
        protocol = "HTTP/1.1" if request.version.minor else "HTTP/1.0"
        ids = request.get(IDS, {})
        access_log.note(client, request.method, request.raw_path, protocol, response.status, time, ids)


def ids_of(parts: Parts) -> dict[str, str | None]:
    """What a record about a job says of it."""
    return {"request_id": parts.job.id, "sequence_id": parts.job.sequence_id}


def note_ids(request: HttpRequest, parts: Parts) -> None:
    """Let the access log, where there is one, know which job a request became."""
    if request.protocol.access_logger is not None:
        request[IDS] = ids_of(parts)
