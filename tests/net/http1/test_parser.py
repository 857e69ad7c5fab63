"""Bytes to requests: which are taken, which refused, what is read from them, and that aiohttp reads the same."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.net.http1.parsed_twice import Parsed, parse, parse_alike

from torchserve_py.net.http1.parser import MAX_HEAD, MAX_HEADER, HttpHead

CURL = (
    b"POST /predictions/noop HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n"
    b"Content-Length: 2\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n{}"
)
CURL_EXPECTS = (
    b"POST /predictions/noop HTTP/1.1\r\nHost: h\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\nContent-Length: 2\r\n"
    b"Expect: 100-continue\r\n\r\n{}"
)
REQUESTS = (
    b"POST /predictions/noop/1.0 HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: python-requests/2.34.2\r\n"
    b"Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\nContent-Length: 9\r\n"
    b'Content-Type: application/json\r\n\r\n{"x": 12}'
)
WRK = b"GET /predictions/noop HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"
HTTPX = (
    b"POST /explanations/noop?a=%20b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate,"
    b" br, zstd\r\nConnection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\nContent-Length: 5\r\n"
    b"authorization: Bearer k3y\r\n\r\n\x00\r\n\r\n"
)
AIOHTTP = (
    b"PUT /predictions/noop HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
    b"User-Agent: Python/3.11 aiohttp/3.14.5\r\nContent-Length: 3\r\nContent-Type: application/octet-stream\r\n\r\nabc"
)
GO = b"POST /predictions/noop HTTP/1.1\r\nHost: h\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 1\r\n\r\nx"
CHUNKED = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
ORDINARY = {
    "curl": (CURL, b"{}"),
    "curl-expects": (CURL_EXPECTS, b"{}"),
    "requests": (REQUESTS, b'{"x": 12}'),
    "wrk": (WRK, b""),
    "httpx": (HTTPX, b"\x00\r\n\r\n"),
    "aiohttp": (AIOHTTP, b"abc"),
    "go": (GO, b"x"),
}


def request(*headers: bytes, line: bytes = b"POST /predictions/noop HTTP/1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join((line, b"Host: h", *headers, b"", body))


@pytest.mark.parametrize("client", ORDINARY)
def test_what_clients_send_is_taken(client: str) -> None:
    data, body = ORDINARY[client]
    (taken,) = parse_alike(data)
    assert (taken.body, taken.head.keep_alive) == (body, True)


def test_a_request_is_read_as_it_was_sent() -> None:
    headers = (
        b"X-Mixed: \t gr\xc3\xbc\xc3\x9fe \t",
        b"x-raw:\xff",
        b"X-Empty:",
        b"Content-Length: 4",
        b"CONNECTION:close",
    )
    (taken,) = parse_alike(request(*headers, line=b"POST /predictions/%6eoop?q=/#f HTTP/1.1", body=b"\r\n\r\n"))
    head = taken.head
    assert (head.method, head.target, head.version) == ("POST", "/predictions/%6eoop?q=/#f", (1, 1))
    assert head.raw_headers == (
        (b"Host", b"h"),
        (b"X-Mixed", "grüße".encode()),
        (b"x-raw", b"\xff"),
        (b"X-Empty", b""),
        (b"Content-Length", b"4"),
        (b"CONNECTION", b"close"),
    )
    assert head.headers["x-mixed"] == "grüße"
    assert head.headers["X-Raw"] == "\udcff"
    assert head.headers.get("x-nothing") is None
    assert taken.body == b"\r\n\r\n"
    assert not head.keep_alive


def test_what_is_rarer_is_taken_as_well() -> None:
    for line in (b"DELETE / HTTP/1.1", b"GET http://h/predictions/noop HTTP/1.1", b"OPTIONS * HTTP/1.1"):
        assert len(parse_alike(request(line=line) + b"\r\n" + WRK)) == 2
    for headers, keep_alive in (
        ((b"Connection: keep-alive", b"Connection: close"), False),
        ((b"Connection: keep-alive, close",), False),
        ((b"Connection: Keep-Alive",), True),
    ):
        (taken,) = parse_alike(request(*headers))
        assert taken.head.keep_alive is keep_alive


@pytest.mark.parametrize(
    "host", [b"", b"h", b"H.example.", b"a_b:80", b"[::1]", b"[fe80::1%25eth0]:8080", b"10.0.0.1:"]
)
def test_hosts(host: bytes) -> None:
    (taken,) = parse_alike(WRK.replace(b"127.0.0.1:8080", host))
    assert taken.head.headers["Host"] == host.decode()


@pytest.mark.parametrize("target", [b"http://other:81/p?q", b"HTTPS://other:81", b"http://other:81?q"])
def test_the_host_of_an_absolute_target_counts(target: bytes) -> None:
    (taken,) = parse_alike(request(b"X-A: b", line=b"GET %s HTTP/1.1" % target))
    assert taken.head.headers["host"] == "other:81"
    assert taken.head.raw_headers == ((b"Host", b"h"), (b"X-A", b"b"))


def test_a_wish_for_a_websocket_is_told_and_another_is_ignored_with_its_body_read() -> None:
    socket = request(b"Connection: Upgrade", b"Upgrade: websocket", line=b"GET / HTTP/1.1")
    taken = parse(socket + b"frames")
    assert (taken.requests[0].head.upgrades, taken.rest) == (True, b"frames")
    other = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA")
    for framing, body in ((b"Content-Length: 4", b"body"), (b"Transfer-Encoding: chunked", b"4\r\nbody\r\n0\r\n\r\n")):
        taken = parse(request(*other, framing, body=body) + WRK)
        assert [(each.head.upgrades, each.body) for each in taken.requests] == [(False, b"body"), (False, b"")]


REFUSED = {
    "length and chunks": request(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and length": request(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
    "other coding": request(b"Transfer-Encoding: gzip", b"Content-Length: 1", body=b"x"),
    "coding by another name": request(b"Transfer-Encoding: xchunked", b"Content-Length: 1", body=b"x"),
    "no coding": request(b"Transfer-Encoding: identity", b"Content-Length: 1", body=b"x"),
    "empty coding": request(b"Transfer-Encoding:", b"Content-Length: 1", body=b"x"),
    "two lengths": request(b"Content-Length: 1", b"Content-Length: 2", body=b"xy"),
    "one length twice": request(b"Content-Length: 1", b"Content-Length: 1", body=b"x"),
    "list of lengths": request(b"Content-Length: 1, 1", body=b"x"),
    "signed length": request(b"Content-Length: +1", body=b"x"),
    "negative length": request(b"Content-Length: -1", body=b"x"),
    "hexadecimal length": request(b"Content-Length: 0x1", body=b"x"),
    "broken length": request(b"Content-Length: 1 1", body=b"x" * 11),
    "fraction": request(b"Content-Length: 1.0", body=b"x"),
    "huge length": request(b"Content-Length: 18446744073709551617", body=b"x"),
    "empty length": request(b"Content-Length:"),
    "length in letters": request("Content-Length: ١".encode(), body=b"x"),
    "bare line feeds": WRK.replace(b"\r\n", b"\n"),
    "bare line feed in the head": request(b"X: a\nContent-Length: 1", body=b"x"),
    "bare carriage return in the head": request(b"X: a\rContent-Length: 1", body=b"x"),
    "bare line feed in the request line": request(line=b"POST /predictions/noop\nx:y HTTP/1.1"),
    "folded header": request(b"X: a", b" b"),
    "folded first header": WRK.replace(b"Host", b" Host"),
    "space before a colon": request(b"Content-Length : 1", body=b"x"),
    "tab before a colon": request(b"X\t: 1"),
    "no colon": request(b"X"),
    "no name": request(b": x"),
    "space in a name": request(b"X Y: x"),
    "letter of another alphabet in a name": request(b"X\xc3\xa9: x"),
    "NUL in a value": request(b"X: a\x00b"),
    "NUL in a name": request(b"X\x00: a"),
    "control character in a value": request(b"X: a\x01"),
    "NUL in the target": request(line=b"GET /\x00 HTTP/1.1"),
    "space in the target": request(line=b"GET /a b HTTP/1.1"),
    "space at the end": request(line=b"GET / HTTP/1.1 "),
    "no version": request(line=b"GET /"),
    "version in small letters": request(line=b"GET / http/1.1"),
    "HTTP/1.2": request(line=b"GET / HTTP/1.2"),
    "HTTP/2.0": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "method in small letters": request(line=b"post / HTTP/1.1"),
    "unknown method": request(line=b"POSTS / HTTP/1.1"),
    "method of proxies": request(line=b"CONNECT h:1 HTTP/1.1"),
    "no host": WRK.replace(b"Host", b"X"),
    "asterisk": request(line=b"GET * HTTP/1.1"),
    "absolute URL without a host": request(line=b"GET http:///p HTTP/1.1"),
    "absolute URL of another scheme": request(line=b"GET ftp://h/p HTTP/1.1"),
    "host with a tail": WRK.replace(b"127.0.0.1:8080", b"[::1]evil"),
    "host with a user": WRK.replace(b"127.0.0.1:8080", b"u@h"),
    "host with a path": WRK.replace(b"127.0.0.1:8080", b"h/p"),
    "host with a port that is none": WRK.replace(b"8080", b"http"),
    "two names of a host": WRK.replace(b"127.0.0.1:8080", b"h, i"),
    "absolute URL with a user": request(line=b"GET http://u:p@h/p HTTP/1.1"),
    "absolute URL with a port that is none": request(line=b"GET http://h:port/p HTTP/1.1"),
    "no path": request(line=b"GET h:1 HTTP/1.1"),
    "two hosts": request(b"hOST: i"),
    "two content types": request(b"Content-Type: a/b", b"content-type: c/d"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "129 headers": request(*(b"X%d: a" % number for number in range(128))),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(shape: str) -> None:
    data = REFUSED[shape]
    taken = parse(data + WRK)
    assert taken.error
    assert taken.requests == []
    assert parse(*(data[index : index + 1] for index in range(len(data))), WRK).error == taken.error


def test_limits_are_met_exactly() -> None:
    most = request(*(b"X%d: a" % number for number in range(127)))
    assert parse_alike(most)
    assert "128 headers" in parse(request(*(b"X%d: a" % number for number in range(128)))).error
    assert parse(request(b"X: " + b"a" * (MAX_HEADER - 1))).requests
    assert "8192" in parse(request(b"X: " + b"a" * MAX_HEADER)).error
    line = b"GET /" + b"a" * (4096 - len(b"GET / HTTP/1.1")) + b" HTTP/1.1"
    assert parse(request(line=line)).requests
    assert "4096" in parse(request(line=line.replace(b"/a", b"/aa"))).error
    large = [b"X%d: %s" % (number, b"a" * 8000) for number in range(9)]
    assert str(MAX_HEAD) in parse(request(*large)).error


@pytest.mark.parametrize(
    "endless", [b"\r\n", b"GET /", b"X", CHUNKED + b"1;a="], ids=["lines", "line", "name", "chunk"]
)
def test_what_has_no_end_is_refused(endless: bytes) -> None:
    assert parse(request()[:-2] + endless, *[endless[-2:] * 8192] * 20).error


def test_bodies_of_one_head_are_each_their_own() -> None:
    head = request(b"Content-Length: 3")
    assert [each.body for each in parse(head + b"abc" + head + b"def").requests] == [b"abc", b"def"]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_head_is_told_before_its_body(count: int) -> None:
    taken = parse(request(b"Content-Length: 5") + b"abcd"[:count])
    assert taken.begun is not None
    assert (taken.begun.length, taken.body, taken.requests) == (5, b"abcd"[:count], [])


NAMES = st.sampled_from(
    b"Host host Content-Length content-length Content-Type Transfer-Encoding Connection connection Upgrade Expect TE"
    b" Trailer Content-Encoding Proxy-Connection Keep-Alive Sec-WebSocket-Key1 User-Agent Etag X x Cookie".split()
)
TOKENS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=8).map(str.encode)
VALUES = st.one_of(
    st.sampled_from(
        b"0 1 3 03 3,3 +3 chunked identity gzip close keep-alive Keep-Alive KEEP-ALIVE upgrade websocket h2c"
        b" 100-continue trailers h".split()
    ),
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=12).map(str.encode),
    st.binary(max_size=6).map(lambda value: value.translate(None, b"\r\n\x00")),
)
SPACES = st.sampled_from((b"", b" ", b"  ", b"\t", b" \t "))
HEADERS = st.tuples(st.one_of(NAMES, NAMES, TOKENS), st.just(b":"), SPACES, VALUES, SPACES).map(b"".join)
TARGETS = st.one_of(
    st.sampled_from((b"/", b"/predictions/noop", b"*", b"http://h/p?q", b"//h/p", b"h:1", b"?a", b"/a%20b%zz?a=%&b#c")),
    st.text(st.characters(codec="utf-8", exclude_characters=" \r\n"), max_size=12).map(
        lambda text: b"/" + text.encode()
    ),
    st.binary(max_size=6).map(lambda target: b"/" + target),
)
METHODS = st.sampled_from((b"GET", b"POST", b"PUT", b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"get", b"CONNECT"))
VERSIONS = st.sampled_from((*[b"HTTP/1.1"] * 8, b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1"))
BODIES = st.one_of(st.binary(max_size=20), st.sampled_from((b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", WRK)))
DAMAGE = st.sampled_from(
    (b"", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b"\x0b", b"\x7f", b"\xff", b"0", b",")
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request, for the most part well formed; mostly with a host, and often with the right length."""
    headers = draw(st.lists(HEADERS, max_size=5))
    body = draw(BODIES)
    if draw(st.integers(0, 7)):
        headers.insert(draw(st.integers(0, len(headers))), b"Host: h")
    if draw(st.booleans()):
        headers.insert(draw(st.integers(0, len(headers))), b"Content-Length: %d" % len(body))
    elif draw(st.booleans()):
        body = b""
    line = b" ".join((draw(METHODS), draw(TARGETS), draw(VERSIONS)))
    return b"\r\n".join((line, *headers, b"", body))


@settings(max_examples=examples(400))
@given(requests())
def test_aiohttp_reads_the_same_in_what_is_taken(data: bytes) -> None:
    parse_alike(data)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Some requests, damaged here and there."""
    content = bytearray(draw(st.one_of(requests(), st.sampled_from([data for data, _ in ORDINARY.values()]))))
    places = st.tuples(st.integers(0, 400), st.integers(0, 3), st.one_of(DAMAGE, st.binary(max_size=3)))
    for position, deleted, inserted in draw(st.lists(places, max_size=3)):
        start = position % (len(content) + 1)
        content[start : start + deleted] = inserted
    return bytes(content) + draw(st.one_of(st.just(b""), requests()))


@settings(max_examples=examples(400))
@given(damaged())
def test_aiohttp_reads_the_same_in_what_is_taken_of_damaged_requests(data: bytes) -> None:
    parse_alike(data)


@settings(max_examples=examples(200))
@given(damaged(), st.lists(st.integers(0, 600), max_size=4))
def test_reads_make_no_difference(data: bytes, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    whole, pieces = parse(data), parse(*(data[start:end] for start, end in itertools.pairwise(ends)))
    assert [_seen(each) for each in pieces.requests] == [_seen(each) for each in whole.requests]
    assert (pieces.error, pieces.rest) == (whole.error, whole.rest)


def _seen(request: Parsed) -> tuple[object, ...]:
    fields = {name: getattr(request.head, name) for name in HttpHead.__slots__}
    return ({**fields, "headers": dict(request.head.headers)}, request.body)
