"""Requests that arrive whole: which are taken, what is read from them, and that aiohttp reads the same."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.parsed_twice import parse, parse_alike

from torchserve_py.api import whole_requests
from torchserve_py.api.whole_requests import Unfinished, parse_whole

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
    taken = parse_alike(data)
    assert taken is not None
    assert (taken.body, taken.keep_alive) == (body, True)


def test_a_request_is_read_as_it_was_sent() -> None:
    headers = (
        b"X-Mixed: \t gr\xc3\xbc\xc3\x9fe \t",
        b"x-raw:\xff",
        b"X-Empty:",
        b"Content-Length: 4",
        b"CONNECTION:close",
    )
    taken = parse_alike(request(*headers, line=b"POST /predictions/%6eoop?q=/#f HTTP/1.1", body=b"\r\n\r\n"))
    assert taken is not None
    assert (taken.method, taken.raw_path) == ("POST", "/predictions/%6eoop?q=/#f")
    assert taken.raw_headers == (
        (b"Host", b"h"),
        (b"X-Mixed", "grüße".encode()),
        (b"x-raw", b"\xff"),
        (b"X-Empty", b""),
        (b"Content-Length", b"4"),
        (b"CONNECTION", b"close"),
    )
    assert taken.headers["x-mixed"] == "grüße"
    assert taken.headers["X-Raw"] == "\udcff"
    assert taken.body == b"\r\n\r\n"
    assert not taken.keep_alive


def test_a_large_body_is_taken_with_its_head() -> None:
    body = bytes(60_000)
    taken = parse_alike(request(b"Content-Length: 60000", body=body))
    assert taken is not None
    assert taken.body == body


NOT_WHOLE = {
    "nothing": b"",
    "part of a head": WRK[:-1],
    "part of a body": CURL[:-1],
    "bytes behind a body": CURL + b"x",
    "bytes behind a head": WRK + b"x",
    "line end behind": WRK + b"\r\n",
    "line end before": b"\r\n" + WRK,
    "two requests": WRK + WRK,
    "a request in a body that has no length": request(body=WRK),
    "length and chunks": request(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and length": request(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
    "chunks": request(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\n\r\n"),
    "no chunk": request(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
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
    "two spaces": request(line=b"GET  / HTTP/1.1"),
    "space at the end": request(line=b"GET / HTTP/1.1 "),
    "no version": request(line=b"GET /"),
    "version in small letters": request(line=b"GET / http/1.1"),
    "HTTP/1.0": request(b"Connection: keep-alive", line=b"GET / HTTP/1.0"),
    "HTTP/1.2": request(line=b"GET / HTTP/1.2"),
    "HTTP/2.0": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "method in small letters": request(line=b"post / HTTP/1.1"),
    "unknown method": request(line=b"POSTS / HTTP/1.1"),
    "rarer method": request(line=b"DELETE / HTTP/1.1"),
    "method of proxies": request(line=b"CONNECT h:1 HTTP/1.1"),
    "absolute target": request(line=b"GET http://h/predictions/noop HTTP/1.1"),
    "asterisk": request(line=b"OPTIONS * HTTP/1.1"),
    "no host": WRK.replace(b"Host", b"X"),
    "two hosts": request(b"hOST: i"),
    "two content types": request(b"Content-Type: a/b", b"content-type: c/d"),
    "two values of Connection": request(b"Connection: keep-alive", b"Connection: close"),
    "several values of Connection": request(b"Connection: keep-alive, close"),
    "connection of proxies": request(b"Proxy-Connection: close"),
    "upgrade": request(b"Connection: Upgrade", b"Upgrade: websocket"),
    "upgrade to HTTP/2": request(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA"),
    "old WebSocket": request(b"Sec-WebSocket-Key1: a"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "head of more than 4096 bytes": request(b"X: " + b"a" * 4096),
    "129 headers": request(*(b"X%d: a" % number for number in range(128))),
}


@pytest.mark.parametrize("shape", NOT_WHOLE)
def test_what_is_out_of_the_ordinary_is_left_to_aiohttp(shape: str) -> None:
    assert parse(NOT_WHOLE[shape]) is None


def test_limits_are_met_exactly() -> None:
    most = request(*(b"X%d: a" % number for number in range(127)))
    assert parse_alike(most) is not None
    rest = 4096 - len(request(b"X: "))
    assert parse_alike(request(b"X: " + b"a" * rest)) is not None
    assert parse_alike(request(b"X: " + b"a" * (rest + 1))) is None


def test_requests_one_after_the_other_have_each_its_own() -> None:
    """Heads are kept: the second time none is parsed."""
    for data, body in (*ORDINARY.values(), *ORDINARY.values()):
        taken = parse_alike(data)
        assert taken is not None
        assert taken.body == body


def test_bodies_of_one_head_are_each_their_own() -> None:
    head = request(b"Content-Length: 3")
    assert [taken.body for taken in (parse(head + b"abc"), parse(head + b"def")) if taken is not None] == [
        b"abc",
        b"def",
    ]


def test_heads_with_secrets_are_not_kept() -> None:
    kept = whole_requests._HEADS
    kept.clear()
    assert parse(request(b"Authorization: Bearer secret")) is not None
    assert parse(request(b"cookie: session=secret")) is not None
    assert parse(request(b"X-Api-Key: secret")) is not None
    assert kept.keys() == []
    assert parse(request(b"X: public")) is not None
    assert len(kept.keys()) == 1


@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_is_missing_of_a_body_is_told(count: int) -> None:
    begun = parse_whole(request(b"Content-Length: 5") + b"abcd"[:count], cast("Any", None))
    assert isinstance(begun, Unfinished)
    assert (begun.body, begun.missing, begun.head.length) == (b"abcd"[:count], 5 - count, 5)
    assert (b"Content-Length", b"5") in begun.head.raw_headers


@pytest.mark.parametrize("headers", [(b"Content-Length: 5", b"Expect: 100-continue"), (b"Transfer-Encoding: chunked",)])
def test_a_body_that_must_be_asked_for_and_one_without_a_length_are_not_waited_for(headers: tuple[bytes, ...]) -> None:
    assert parse_whole(request(*headers), cast("Any", None)) is None


def test_what_is_noted_about_a_request_is_its_own() -> None:
    one, other = parse(WRK), parse(WRK)
    assert one is not None
    assert other is not None
    one["a"] = 1
    one["b"] = 2
    assert (one.get("a", 0), one.get("b", 0), other.get("a", 0)) == (1, 2, 0)


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


@settings(max_examples=1500)
@given(requests())
def test_aiohttp_reads_the_same_in_what_is_taken(data: bytes) -> None:
    parse_alike(data)


@settings(max_examples=1500)
@given(
    st.one_of(requests(), st.sampled_from([data for data, _ in ORDINARY.values()])),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.one_of(DAMAGE, st.binary(max_size=3))), max_size=3),
    st.one_of(st.none(), st.integers(0, 400)),
    st.one_of(st.just(b""), requests()),
    st.lists(st.integers(1, 30), max_size=3),
)
def test_aiohttp_reads_the_same_in_what_is_taken_of_damaged_requests_in_pieces(
    data: bytes, damage: list[tuple[int, int, bytes]], end: int | None, behind: bytes, cuts: list[int]
) -> None:
    content = bytearray(data)
    for position, deleted, inserted in damage:
        start = position % (len(content) + 1)
        content[start : start + deleted] = inserted
    sent = bytes(content[:end]) + behind
    ends = sorted({max(0, len(sent) - cut) for cut in cuts} | {0, len(sent)})
    parse_alike(*(sent[start:end] for start, end in itertools.pairwise(ends)))


@given(requests(), st.integers(0, 20))
def test_a_body_that_is_behind_makes_no_difference(data: bytes, behind: int) -> None:
    alone = parse(data)
    cut = max(data.find(b"\r\n\r\n") + 4, len(data) - behind)
    if alone is None or not data[cut:]:
        return
    taken = parse_alike(data[:cut], data[cut:])
    if taken is None:
        assert "expect" in alone.headers
    else:
        assert (taken.method, taken.raw_path, taken.raw_headers) == (alone.method, alone.raw_path, alone.raw_headers)
        assert (taken.body, taken.keep_alive) == (alone.body, alone.keep_alive)
