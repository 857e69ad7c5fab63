"""Parses bytes into heads and bodies, with httptools (llhttp) and the rules that it leaves to its users.

The rules: a supported HTTP version, a Host header, no repetition of headers that must be unique, and size limits.
Ambiguous requests are refused, because a proxy might read them differently (request smuggling).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar, overload

import httptools

from torchserve_py.net.http1.errors import BadHttpMessage

T = TypeVar("T")
HeadT = TypeVar("HeadT", bound="HttpHead")

#: TorchServe's limits; its 8192 bytes are for all headers together, here they are for each of up to 128 headers.
MAX_REQUEST_LINE: Final = 4096
MAX_HEADER: Final = 8192
MAX_HEADERS: Final = 128
#: Bytes of a whole head.
MAX_HEAD: Final = 64 * 1024
#: Bytes to be fed at a time, so that a head cannot exceed its limits by much before they are checked.
MAX_PIECE: Final = 4 * 1024
#: Bytes that may contain neither a complete head nor a part of a body, such as line ends between two requests.
_MAX_FRUITLESS: Final = 2 * MAX_HEAD
_TOO_MANY: Final = f"A request may have {MAX_HEADERS} headers of {MAX_HEAD} bytes together."
#: Length of a request line without method and target: two spaces and ``HTTP/1.1``.
_REST_OF_LINE: Final = 10
#: Headers that say more than usual of how the body comes, or what is asked for instead of an answer.
_SPECIAL: Final = frozenset((b"expect", b"sec-websocket-key1", b"transfer-encoding", b"upgrade"))
_KEPT_LINES: Final = 1024
_VERSIONS: Final = {"1.1": (1, 1), "1.0": (1, 0)}
#: Headers that a request may have only once; with two it would be undefined which one holds (RFC 9110, 5.3).
_ONLY_ONCE: Final = frozenset(
    b"content-length content-location content-range content-type etag host max-forwards server transfer-encoding"
    b" user-agent".split()
)
#: Digits of a Content-Length; without a limit it could have thousands of leading zeros.
_MAX_DIGITS: Final = 20
#: A name, an IPv4 address, or an IPv6 address in brackets (RFC 3986, 3.2.2), and a port.
_NAME: Final = rb"[A-Za-z0-9.~%!$&'()*+,;=_-]"
_IPV6: Final = rb"\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9.~_-]+)?\]"
_HOST: Final = re.compile(rb"(?:" + _NAME + rb"*|" + _IPV6 + rb")(?::[0-9]{0,5})?")
#: With a host, and without a user (RFC 9110, 4.2.1 and 4.2.4); other schemes name resources of other servers.
_ABSOLUTE: Final = re.compile(
    rb"https?://((?:" + _NAME + rb"+|" + _IPV6 + rb")(?::[0-9]{1,5})?)(?:[/?#]|$)", re.IGNORECASE
)
#: Clients name the server in few ways: of so many it is kept whether they are names.
_KEPT_HOSTS: Final = 256


class Headers(Mapping[str, str]):
    """The headers of a request by case-insensitive name; for a repeated header, its first value."""

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[bytes, bytes]) -> None:
        #: The values as they were sent, by name in lower case: where each request is looked up.
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        return self.raw[_key(name)].decode("utf-8", "surrogateescape")

    @overload
    def get(self, name: str, default: None = None, /) -> str | None: ...

    @overload
    def get(self, name: str, default: str | T, /) -> str | T: ...

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return the value, or the default where there is none."""
        value = self.raw.get(_key(name))
        return default if value is None else value.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("utf-8", "surrogateescape") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)


class RepeatedHeaders(Headers):
    """The headers of a request that has some more than once."""

    __slots__ = ("sent",)

    def __init__(self, raw: Mapping[bytes, bytes], sent: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(raw)
        self.sent = sent

    def values_of(self, name: str) -> list[str]:
        """Return all values of a header, in order."""
        key = _key(name)
        return [value.decode("utf-8", "surrogateescape") for each, value in self.sent if each.lower() == key]


@functools.lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    return name.lower().encode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=_KEPT_HOSTS)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


class RequestLine(NamedTuple):
    """What the first line of a request says."""

    method: str
    target: str  # as it was sent: a path with its query, or an absolute URL
    path: str  # the target without its query
    version: tuple[int, int]  # (1, 1) or (1, 0)
    host: bytes | None  # that of an absolute URL


def _read_line(method: bytes, version: str, target: bytes) -> RequestLine:
    """Return what a request line says. Raises BadMessage: it is not one that this server takes."""
    read_version = _VERSIONS.get(version)
    if read_version is None:
        raise BadHttpMessage("The version of HTTP must be 1.0 or 1.1.")
    if method == b"CONNECT":
        raise BadHttpMessage("The method CONNECT is not supported; it is for proxies.")
    absolute = None if target[:1] == b"/" else _ABSOLUTE.match(target)
    if not (target[:1] == b"/" or absolute or (target, method) == (b"*", b"OPTIONS")):
        raise BadHttpMessage("The target must be a path or an absolute URL of http or https.")
    if len(method) + len(target) + _REST_OF_LINE > MAX_REQUEST_LINE:
        raise BadHttpMessage(f"The request line may have {MAX_REQUEST_LINE} bytes.")
    text = target.decode("utf-8", "surrogateescape")
    return RequestLine(method.decode(), text, text.partition("?")[0], read_version, absolute and absolute[1])


#: Clients use few paths: the latest lines without a query are kept.
_known_line: Final = functools.lru_cache(maxsize=_KEPT_LINES)(_read_line)


class HttpHead:
    """The head of a request: a record that the parser fills in.

    Attributes:
        method, target, path, version: See `RequestLine`.
        headers: By name, with the host of an absolute URL as Host.
        raw_headers: As they were sent, in order.
        keep_alive: Whether the client lets the connection stay open after the answer.
        length: Bytes of the body; None if it is sent in chunks.
        expects_continue: Whether the client sends the body only after ``100 Continue``.
        upgrades: Whether the client asks for a WebSocket; upgrades to other protocols are ignored.
    """

    __slots__ = (
        *("expects_continue", "headers", "keep_alive", "length", "method", "path", "raw_headers", "target"),
        *("upgrades", "version"),
    )

    method: str
    target: str
    path: str
    version: tuple[int, int]
    headers: Headers
    raw_headers: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    length: int | None
    expects_continue: bool
    upgrades: bool


class Receiver(Protocol[HeadT]):
    """Takes what was parsed; it is `http_connection.HttpConnection`."""

    def new_head(self) -> HeadT:
        """Return an empty record for a head that is complete: the parser fills it in, and passes it to `on_head`."""

    def on_head(self, head: HeadT) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...


class RequestParser(Generic[HeadT]):
    """Parses the requests of one connection, whose callbacks it calls.

    After an upgrade, or after the connection's last request, the parser takes no more bytes.
    """

    def __init__(self, receiver: Receiver[HeadT]) -> None:
        self._receiver = receiver
        self._parser = httptools.HttpRequestParser(self)
        #: Whether part of a head has arrived, but not all of it.
        self.is_within_head = False
        #: The bytes after a request for an upgrade; None before such a request.
        self.rest: bytes | None = None
        self._problem: BadHttpMessage | None = None
        #: The header that frames the body of a request whose upgrade is ignored, and whether the parser replays it.
        self._ignored_upgrade: bytes | None = None
        self._is_replayed = False
        #: Bytes fed since the latest piece with the end of a head, or with a part or the end of a body.
        self._fruitless = 0
        self._target = b""
        self._raw_headers: list[tuple[bytes, bytes]] = []

    def close(self) -> None:
        """Take no more bytes, and release httptools' parser, the connection, and the frames of what was raised."""
        del self._parser, self._receiver, self._problem

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes.

        Raises BadMessage: the bytes are not valid HTTP. Earlier callbacks stay valid; the parser is of no further use.
        """
        self._fruitless += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = bytes(data[upgrade.args[0] :])
            if self._ignored_upgrade is None:
                self.rest = rest
            else:
                self._go_on(self._ignored_upgrade, rest)
        except httptools.HttpParserError as error:
            if self._problem is None:
                if isinstance(error, httptools.HttpParserCallbackError):  # a defect of the receiver
                    raise
                is_tls = self._fruitless == len(data) and data[0] == 0x16  # the first byte of a handshake
                self._problem = BadHttpMessage("This is HTTPS traffic on an HTTP port" if is_tls else str(error))
            raise self._problem from None
        if self._fruitless > MAX_PIECE:
            self._check_sizes()

    def _go_on(self, framing: bytes, rest: bytes) -> None:
        """Continue in HTTP/1.1: httptools stopped after a head that asks for a protocol other than WebSocket."""
        self._parser = httptools.HttpRequestParser(self)
        self._is_replayed = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._is_replayed = False
        if rest:
            self.feed(rest)

    # Callbacks of httptools. An exception raised in them stops it.

    def on_message_begin(self) -> None:
        self.is_within_head = True
        self._target = b""
        self._raw_headers = []

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or a trailer after a chunked body (trailers are ignored)."""
        self._raw_headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_within_head = False
        if self._is_replayed:
            self._ignored_upgrade = None
            return
        if self._fruitless > MAX_PIECE:
            self._check_sizes()
        self._fruitless = 0
        parser, target = self._parser, self._target
        try:
            line = (_read_line if b"?" in target else _known_line)(
                parser.get_method(), parser.get_http_version(), target
            )
        except BadHttpMessage as error:
            self._problem = error
            raise
        headers = self._headers(line)
        values = headers.raw
        digits = values.get(b"content-length", b"0")
        if len(digits) > _MAX_DIGITS:
            self._fail(f"Content-Length may have {_MAX_DIGITS} digits.")
        head = self._receiver.new_head()
        head.method, head.target, head.path, head.version, _ = line
        head.headers = headers
        head.raw_headers = tuple(self._raw_headers)
        head.keep_alive = parser.should_keep_alive()
        head.length = int(digits)
        head.expects_continue = head.upgrades = False
        if not _SPECIAL.isdisjoint(values):
            self._read_special(head, values)
        self._receiver.on_head(head)

    def on_body(self, data: bytes) -> None:
        self._fruitless = 0
        self._receiver.on_body(data)

    def on_message_complete(self) -> None:
        self._fruitless = 0
        if self._ignored_upgrade is None:
            self._receiver.on_end()

    def _headers(self, line: RequestLine) -> Headers:
        """Return the headers of a request."""
        headers = self._raw_headers
        if len(headers) > MAX_HEADERS:
            self._fail(_TOO_MANY)
        values = {name.lower(): value for name, value in reversed(headers)}
        made = Headers(values)
        if len(values) < len(headers):
            made = RepeatedHeaders(values, tuple(headers))
            names = [name.lower() for name, _ in headers]
            for name in values.keys() & _ONLY_ONCE:
                if names.count(name) > 1:
                    self._fail(f"Header {name.decode('ascii', 'replace')} is given twice.")
        host = values.get(b"host")
        if host is None:
            if line.version == (1, 1):
                self._fail("Header Host is missing.")
        elif not _is_host(host):
            self._fail("Header Host is no host with an optional port.")
        if line.host is not None:  # it is the one that counts (RFC 9112, 3.2.2)
            values[b"host"] = line.host
        return made

    def _read_special(self, head: HttpHead, values: Mapping[bytes, bytes]) -> None:
        """Read what a head says more than usual of how its body comes, or of what is asked for instead of an answer."""
        if b"sec-websocket-key1" in values:
            self._fail("This is the handshake of an obsolete WebSocket draft, which is not supported.")
        if (coding := values.get(b"transfer-encoding")) is not None:
            if head.version == (1, 0) or coding.lower() != b"chunked":
                self._fail("Transfer-Encoding must be chunked, and is not allowed in HTTP/1.0.")
            head.length = None
        head.expects_continue = head.version == (1, 1) and values.get(b"expect", b"").lower() == b"100-continue"
        head.upgrades = self._upgrades(head, values)

    def _upgrades(self, head: HttpHead, values: Mapping[bytes, bytes]) -> bool:
        """Return whether the client asks for a WebSocket; note a request for another protocol, which is ignored."""
        if not self._parser.should_upgrade():
            return False
        asked = (head.method, head.version, head.length) == ("GET", (1, 1), 0)
        if asked and values.get(b"upgrade", b"").lower() == b"websocket":
            return True
        length = head.length
        self._ignored_upgrade = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
        return False

    def _check_sizes(self) -> None:
        """Check what has arrived since the latest complete head, or the latest part of a body."""
        sizes = [len(name) + len(value) for name, value in self._raw_headers]
        if len(self._target) > MAX_REQUEST_LINE:
            self._fail(f"The request line may have {MAX_REQUEST_LINE} bytes.")
        if max(sizes, default=0) > MAX_HEADER:
            self._fail(f"A header may have {MAX_HEADER} bytes.")
        if len(sizes) > MAX_HEADERS or sum(sizes) > MAX_HEAD:
            self._fail(_TOO_MANY)
        if self._fruitless > _MAX_FRUITLESS:
            self._fail(f"More than {_MAX_FRUITLESS} bytes contain neither a complete head nor a part of a body.")

    def _fail(self, message: str) -> NoReturn:
        self._problem = BadHttpMessage(message)
        raise self._problem
