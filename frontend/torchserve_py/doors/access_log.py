"""What the access log is told of an HTTP request: its answer, and which job it became."""

from __future__ import annotations

import asyncio

from torchserve_py.jobs.parts import Parts
from torchserve_py.logs import access_log
from torchserve_py.transport.http1.request import Request


def log_answer(request: Request) -> None:
    """Note a request that has been answered."""
    seconds = asyncio.get_running_loop().time() - request.arrived
    protocol = "HTTP/1.1" if request.version == (1, 1) else "HTTP/1.0"
    access_log.note(request.peer, request.method, request.target, protocol, request.status, seconds, request.log_fields)


def log_refusal(peer: object, status: int) -> None:
    """Note bytes that never became a request."""
    access_log.note(peer, "UNKNOWN", "/", "HTTP/1.0", status, 0.0)


def ids_of(parts: Parts) -> dict[str, str | None]:
    """What a record about a job says of it."""
    return {"request_id": parts.job.id, "sequence_id": parts.job.sequence_id}
