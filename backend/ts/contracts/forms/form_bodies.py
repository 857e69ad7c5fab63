"""Form bodies cut into their fields; imported by a worker only when the first form comes."""

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ts.jobs.errors import RowFailure

if TYPE_CHECKING:  # the module has this name for type checkers only
    from python_multipart.multipart import MultipartCallbacks

#: What a part with a file name and no type of its own is.
_DEFAULT_FILE_TYPE = "application/octet-stream"


def parse_form(content_type: str | bytes, body: bytes) -> list[tuple[str, str, bytes]]:
    """Return (name, content type, value) of every field of a form, in order.

    Only fields with a file name have a content type; that of others is "", whatever the client declared (TorchServe's
    rule). Raises Failure: the body is not the form that ``content_type`` announces.
    """
    if isinstance(content_type, str):
        content_type = content_type.encode("latin-1", "replace")
    media_type, options = parse_options_header(content_type)
    if media_type == b"application/x-www-form-urlencoded":
        return [_urlencoded_field(field) for field in body.split(b"&") if field]
    boundary = options.get(b"boundary")
    if not boundary:
        raise RowFailure(400, "The content type multipart/form-data must name its boundary: '; boundary=…' is missing.")
    try:
        return _MultipartReader(boundary).read(_with_crlf(body, b"--" + boundary))
    except FormParserError as error:
        raise RowFailure(400, f"Malformed multipart/form-data body: {error}") from error


def _with_crlf(body: bytes, delimiter: bytes) -> bytes:
    """Return a multipart body without what precedes its first part, and with lines that end as the standard has it.

    Clients that write bodies by hand end lines with LF alone; then all of the body's own lines do.
    """
    start = body.find(delimiter)
    if start > 0 and body[start - 1 : start] == b"\n":
        body = body[start:]
    if not body.startswith(delimiter + b"\n"):
        return body
    parts = [part.partition(b"\n\n") for part in body.split(b"\n" + delimiter)]
    return (b"\r\n" + delimiter).join(
        head.replace(b"\n", b"\r\n") + (b"\r\n\r\n" + value if blank else b"") for head, blank, value in parts
    )


def _urlencoded_field(field: bytes) -> tuple[str, str, bytes]:
    name, _, value = (unquote_to_bytes(part.replace(b"+", b" ")) for part in field.partition(b"="))
    return name.decode("utf-8", "replace"), "", value


class _MultipartReader:
    def __init__(self, boundary: bytes) -> None:
        self._parts: list[tuple[str, str, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._value = bytearray()
        self._complete = False
        callbacks: MultipartCallbacks = {
            "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
            "on_header_end": self._on_header_end,
            "on_part_data": lambda data, start, end: self._value.extend(data[start:end]),
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def read(self, body: bytes) -> list[tuple[str, str, bytes]]:
        self._parser.write(body)
        self._parser.finalize()
        if not self._complete:
            raise FormParserError("the body ends before its last boundary")
        return self._parts

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header_name).lower()] = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _on_part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if name is None:
            raise FormParserError("a part has no name in its Content-Disposition header")
        type_ = ""
        if b"filename" in options:
            declared = self._headers.get(b"content-type", b"").decode("latin-1").strip()
            type_ = declared if declared.partition(";")[0] else _DEFAULT_FILE_TYPE
        # The header parser gives UTF-8 names back as the latin-1 text it read them as.
        self._parts.append((name.decode("utf-8", "replace"), type_, bytes(self._value)))
        self._headers, self._value = {}, bytearray()

    def _on_end(self) -> None:
        self._complete = True
