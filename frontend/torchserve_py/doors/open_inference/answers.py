"""Bodies of Open Inference answers: compact JSON, errors, compression."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.failures import UNAVAILABLE, DoorError, Failure
from torchserve_py.doors.requests import DEFLATE, GZIP
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.doors.pipeline import Exchange
    from torchserve_py.doors.responses import Headers
    from torchserve_py.jobs.parts import Part

_LEVEL: Final = 1
#: Bodies above this size are compressed in a thread, so that other requests do not wait for them.
_LARGE: Final = 64 * 1024


class Answers:
    """Writes the server's own answers.

    Args:
        responses: Writes answers.
        compress_from: JSON of so many bytes or more is compressed, if the client accepts that.
    """

    def __init__(self, responses: Responses, compress_from: int) -> None:
        self._responses = responses
        self._compress_from = compress_from

    async def json(self, request: Request, value: Any, status: int = 200) -> Sent:
        """Answer with JSON of the server's own."""
        body, added = await compressed_for(request, to_json(value), self._compress_from)
        return self._responses.send(request, status, body, (JSON_TYPE, *added))


def to_json(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def error_body(message: str, status: int) -> bytes:
    """Return the body of an error; status 422 comes with MLServer's list of details, too."""
    members: dict[str, Any] = {"error": message}
    if status == 422:
        members["detail"] = [{"type": "value_error", "loc": ["body"], "msg": message}]
    return to_json(members)


def refuse_if_failing(serving: Serving, model: ServedModel) -> None:
    """Refuse a request to a model that none of its workers could load at the last attempt.

    Raises DoorError: the workers fail to start.
    """
    if serving.fails_to_load(model):
        message = f"Model {model.name} is not ready: its workers fail to start."
        raise DoorError(Failure(503, UNAVAILABLE, message, Cause.no_worker.value))


@lru_cache(maxsize=64)
def accepted_encoding(header: str) -> str | None:
    """Return the encoding that an ``Accept-Encoding`` header prefers, or None for no encoding."""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = 0.0
    rest = weights.get("*", 0.0)
    best = max((GZIP, DEFLATE), key=lambda name: weights.get(name, rest))
    weight_of_best = weights.get(best, rest)
    return best if weight_of_best > 0 and weight_of_best >= weights.get("identity", 0.0) else None


def encoding_for(request: Request, body: bytes | bytearray, min_size: int) -> str | None:
    """Return the encoding for a body, or None to send it as it is, as bodies under ``min_size`` bytes are."""
    accepted = request.headers.get("Accept-Encoding") if len(body) >= min_size else None
    return None if accepted is None else accepted_encoding(accepted)


async def compressed_for(request: Request, body: bytes | bytearray, min_size: int) -> tuple[bytes | bytearray, Headers]:
    """Return a body in the encoding that the client prefers, and the headers that name the encoding."""
    encoding = encoding_for(request, body, min_size)
    if encoding is None:
        return body, ()
    return await compressed(body, encoding), (("content-encoding", encoding), ("vary", "accept-encoding"))


async def compressed(body: bytes | bytearray, encoding: str) -> bytes:
    """Compress a body."""
    if len(body) > _LARGE:
        return await asyncio.to_thread(_compress, body, encoding)
    return _compress(body, encoding)


def _compress(body: bytes | bytearray, encoding: str) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0) if encoding == GZIP else zlib.compress(body, _LEVEL)


async def only_response(exchange: Exchange, part: Part, endpoint: str, stream: str) -> Part:
    """Return the only response of a model that may give several, with the headers that were set last.

    Args:
        part: The first part of the answer.
        endpoint: What the client has called, for the message of the error …
        stream: The endpoint for any number of responses.

    Raises:
        DoorError: The model has given no response, or a second one.
    """
    found = [part] if part.body else []
    headers = part.headers
    while part.more and len(found) < 2:
        part = await exchange.next()
        headers = part.headers or headers
        if part.body:
            found.append(part)
    if len(found) == 1:
        return found[0]._replace(headers=headers)
    count = "several responses" if found else "no response"
    message = f"Model {exchange.name} has {count} to this request, and {endpoint} has one. Use {stream}."
    raise DoorError(Failure(501, "NotImplementedException", message))
