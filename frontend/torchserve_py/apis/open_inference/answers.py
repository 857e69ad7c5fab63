"""What Open Inference answers have in common: compact JSON, errors, compression, refusals."""

import asyncio
import gzip
import json
import zlib
from functools import lru_cache, partial
from typing import Any, Final

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.client_call import ClientCall
from torchserve_py.endpoints.content_encodings import DEFLATE, GZIP, IDENTITY
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure, unsupported
from torchserve_py.endpoints.own_words import in_own_words
from torchserve_py.endpoints.responses import Headers
from torchserve_py.net.http1.request import Request

_LEVEL: Final = 1
#: Bodies above this size are compressed in a thread, so that other requests do not wait for them.
_LARGE: Final = 64 * 1024


def to_json(value: Any) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def error_body(message: str, status: int, details: bytes | bytearray = b"") -> bytes:
    """Return the body of an error, with its details, which are JSON; status 422 always has MLServer's list of them."""
    members: dict[str, Any] = {"error": message}
    if status == 422 and not details:
        members["detail"] = [{"type": "value_error", "loc": ["body"], "msg": message}]
    body = to_json(members)
    return b"".join((body[:-1], b',"detail":', details, b"}")) if details else body


def refuse_if_failing(serving: Serving, model: ServedModel) -> None:
    """Raise EndpointError if none of the model's workers could load it at the last attempt."""
    if serving.fails_to_load(model):
        failed = Failure(503, UNAVAILABLE, "", Cause.no_worker.value)
        raise EndpointError(in_own_words(failed, Cause.no_worker, model))


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
    return best if weight_of_best > 0 and weight_of_best >= weights.get(IDENTITY, 0.0) else None


def encoding_for(request: Request, body: bytes | bytearray, min_size: int) -> str | None:
    """Return the encoding for a body, or None to send it as it is, as bodies under ``min_size`` bytes are."""
    accepted = request.headers.get("Accept-Encoding") if len(body) >= min_size else None
    return None if accepted is None else accepted_encoding(accepted)


async def compressed_for(request: Request, body: bytes | bytearray, min_size: int) -> tuple[bytes | bytearray, Headers]:
    """Return a body in the encoding that the client prefers, and the headers that name the encoding."""
    encoding = encoding_for(request, body, min_size)
    if encoding is None:
        return body, ()
    compress = partial(gzip.compress, mtime=0) if encoding == GZIP else zlib.compress
    compressed = await asyncio.to_thread(compress, body, _LEVEL) if len(body) > _LARGE else compress(body, _LEVEL)
    return compressed, (("content-encoding", encoding), ("vary", "accept-encoding"))


async def only_response(call: ClientCall, part: Part, endpoint: str, stream: str) -> Part:
    """Return the only response of a model that may give several, with the headers that were set last.

    Raises EndpointError: the model has given no response, or a second one; the message names ``stream``, the endpoint
    for any number of responses.
    """
    found = [part] if part.body else []
    headers = part.headers
    while part.more and len(found) < 2:
        part = await call.next_usable()
        headers = part.headers or headers
        if part.body:
            found.append(part)
    if len(found) == 1:
        return found[0]._replace(headers=headers)
    count = "several responses" if found else "no response"
    message = f"Model {call.name} has {count} to this request, and {endpoint} has one. Use {stream}."
    raise unsupported(message)
