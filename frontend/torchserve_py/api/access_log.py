"""The access log: one line for each request, in TorchServe's format, on the logger ``ACCESS_LOG``."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from torchserve_py.api.requests import HttpRequest
from torchserve_py.api.responses import QuietSent
from torchserve_py.workers.parts import Parts

LOGGER_NAME = "ACCESS_LOG"
#: Where a request keeps the ids that stand in its record.
IDS = web.RequestKey("ids", dict[str, str | None])


class AccessLog(AbstractAccessLogger):
    """``/<ip>:<port> "<METHOD> <uri> HTTP/1.1" <status> <ms>``."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log an answer that has been written; ``time`` is the seconds since the request arrived."""
        if isinstance(response, QuietSent):
            return
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        client = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        target = request.raw_path.encode("ascii", "backslashreplace").decode("ascii")
        version = f"HTTP/{request.version.major}.{request.version.minor}"
        milliseconds = round(time * 1000)
        more = {"client": client, "status": response.status, "milliseconds": milliseconds, **request.get(IDS, {})}
        self.logger.info(
            '/%s "%s %s %s" %d %d', client, request.method, target, version, response.status, milliseconds, extra=more
        )


def ids_of(parts: Parts) -> dict[str, str | None]:
    """What a record about a job says of it."""
    return {"request_id": parts.job.id, "sequence_id": parts.job.sequence_id}


def note_ids(request: HttpRequest, parts: Parts) -> None:
    """Let the access log, where there is one, know which job a request became."""
    if request.protocol.access_logger is not None:
        request[IDS] = ids_of(parts)
