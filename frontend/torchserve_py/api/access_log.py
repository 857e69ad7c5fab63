"""The access log: one line for each request, in TorchServe's format, on the logger ``ACCESS_LOG``."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from torchserve_py.api.responses import QuietSent

LOGGER_NAME = "ACCESS_LOG"


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
        self.logger.info('/%s "%s %s %s" %d %d', client, request.method, target, version, response.status, milliseconds)
