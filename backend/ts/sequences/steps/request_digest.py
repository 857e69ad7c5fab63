"""The digest of a step's request, by which a repetition is told from another request under the same number or id.

It begins with the digest of the values: a form has the same ones with another boundary and with its fields in another
order, and a compressed body the same ones if it was compressed at another time. The digest of the call follows, if the
client has named the request: the path, the query, the type of the body, and whether an explanation is asked for.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgpack

from ts.context import RequestProcessor
from ts.jobs.errors import RowFailure
from ts.protocol.messages import REQUEST_DIGEST, InferRow
from ts.runtime.decoded_rows import Parameter, form_fields, media_type
from ts.sequences.steps.record import DIGEST_SIZE, digest_of, digest_of_body

#: What the server tells workers of the call: the rest of the path, whether it is an explanation, and the request line.
_OF_CALLS: Final = ("url_path", "explain", ":method", ":path")
_GZIP: Final = b"\x1f\x8b"
#: The bytes of gzip's header that say when, how hard and on what system a body was compressed (RFC 1952).
_CIRCUMSTANCES: Final = slice(4, 10)


def digest_of_values(sent: InferRow, request: RequestProcessor, forms: str) -> bytes:
    """Return the digest of the values of a request; for ``forms`` see `ts.runtime.decoded_rows.read_row`."""
    body = sent.body
    if (fields := _fields(sent, forms)) is not None:
        values = {name: (type_, value) for name, type_, value in fields}  # the later of two with one name counts
        return digest_of_body(msgpack.packb(sorted(values.items())))
    if type(body) is not list and body[:2] == _GZIP and request.get_request_property("content-encoding"):
        digest = blake2b(body[: _CIRCUMSTANCES.start], digest_size=DIGEST_SIZE)
        digest.update(memoryview(body)[_CIRCUMSTANCES.stop :])
        return digest.digest()
    return digest_of_body(body)


def digest_of_request(sent: InferRow, request: RequestProcessor, forms: str, *, is_named: bool) -> bytes:
    """Return the digest of a request; with that of the call if the client has named it, by a number or an id.

    Within a workflow it is the digest of the client's request.
    """
    if not is_named:
        return digest_of_values(sent, request, forms)
    told = request.get_headers_by_name().get
    if (given := told(REQUEST_DIGEST)) is not None:
        return bytes.fromhex(given)
    values = digest_of_values(sent, request, forms)
    return values + _digest_of_call(sent.protocol, sent.content_type, *map(told, _OF_CALLS))


def _fields(sent: InferRow, forms: str) -> Sequence[Parameter] | None:
    try:
        return form_fields(sent, forms)
    except RowFailure:  # the model's code reads it in its own way
        return None


@lru_cache(maxsize=1024)
def _digest_of_call(protocol: str | None, content_type: str | bytes | None, *told: str | None) -> bytes:
    return digest_of("\0".join(map(str, (protocol, media_type(content_type).lower(), *told))))
