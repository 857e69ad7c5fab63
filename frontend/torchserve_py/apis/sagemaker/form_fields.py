"""Finds one field of a form without parsing the whole form, which is the worker's work.

A client chooses the size of a form and the number of its fields. Only the front of the form is read, in steps whose
number does not depend on the content.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_plus

from torchserve_py.endpoints.failures import bad_request

FORM_TYPE: Final = "application/x-www-form-urlencoded"
MULTIPART_TYPE: Final = "multipart/form-data"
#: How many parts of a multipart form are read.
MAX_PARTS: Final = 100
#: The largest header of a part, and the largest text of the field, in bytes.
_MAX_HEAD: Final = 4096
_MAX_TEXT: Final = 4096
_HEAD_END: Final = b"\r\n\r\n"


def form_field(content_type: str, body: bytes, name: str) -> str | None:
    """Return the text of a field, or None if there is no such field or it is empty.

    In an encoded form the name must not be percent-encoded; in a multipart form the field must be among the first
    `MAX_PARTS` parts. Raises EndpointError: the body is no form, or the field may be behind the parts that are read.
    """
    if content_type.partition(";")[0].strip().lower() == FORM_TYPE:
        return _encoded_field(body, name.encode() + b"=")
    for field, start, end in _parts(body, _boundary(content_type)):
        if field == name.encode() and start < end:
            return body[start : min(end, start + _MAX_TEXT)].decode("utf-8", "replace")
    return None


def _encoded_field(body: bytes, start: bytes) -> str | None:
    """Return the first text that follows ``start``, among the first `MAX_PARTS` fields that begin with it."""
    for found in (b"&" + body).split(b"&" + start, MAX_PARTS)[1:]:
        if text := found[:_MAX_TEXT].partition(b"&")[0]:
            return unquote_plus(text.decode("utf-8", "replace"))
    return None


def _boundary(content_type: str) -> bytes:
    from python_multipart.multipart import parse_options_header  # few requests need it

    boundary: bytes | None = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise bad_request(f"The content type {MULTIPART_TYPE} must name its boundary: '; boundary=…' is missing.")
    return boundary


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name of each part, and where its content starts and ends."""
    from python_multipart.multipart import parse_options_header

    delimiter = b"\r\n--" + boundary
    if body.startswith(delimiter[2:]):
        at = -2
    elif (at := body.find(delimiter)) < 0:
        raise _malformed("it does not hold its boundary")
    for _ in range(MAX_PARTS):
        head_start = at + len(delimiter)
        if body.startswith(b"--", head_start):
            return
        head_end = body.find(_HEAD_END, head_start, head_start + _MAX_HEAD)
        start = head_end + len(_HEAD_END)
        at = body.find(delimiter, start)
        if head_end < 0 or at < 0:
            raise _malformed(f"a part has no end, or its header has none within {_MAX_HEAD} bytes")
        for line in body[head_start:head_end].split(b"\r\n"):
            header, _, value = line.partition(b":")
            if header.strip().lower() == b"content-disposition":
                yield parse_options_header(value.strip())[1].get(b"name", b""), start, at
    raise bad_request(
        f"The field that names the model must be among the first {MAX_PARTS} of the form; or name it in the query."
    )


def _malformed(problem: str) -> Exception:
    return bad_request(f"Malformed {MULTIPART_TYPE} body: {problem}.")
