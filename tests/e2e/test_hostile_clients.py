"""Clients that mean no good: smuggled requests, endless heads and bodies, hang-ups at any point, garbage for gRPC.

Whatever they send, they get one clear refusal (or none), and nobody else notices.
"""

import socket
import struct
import time
from collections.abc import Iterator

import pytest
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

ECHO = """
def handle(data, context):
    return None if data is None else [row["body"] for row in data]
"""

HEAD = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
#: What a proxy that reads the shape before it in another way would take for the request of somebody else.
SMUGGLED = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"

SHAPES = {
    "length-and-chunked": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked-and-length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two-lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
    "the-same-length-twice": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "list-of-lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "length-with-sign": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "length-with-underscore": HEAD + b"Content-Length: 0_5\r\n\r\nhello",
    "hexadecimal-length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "length-with-thousands-of-zeros": HEAD + b"Content-Length: " + b"0" * 5000 + b"5\r\n\r\nhello",
    "folded-header": HEAD + b"X-A: b\r\n Content-Length: 5\r\n\r\n",
    "folded-transfer-encoding": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "space-before-the-first-header": HEAD.replace(b"Host", b" Host") + b"Content-Length: 0\r\n\r\n",
    "space-before-colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "unknown-encoding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked-not-last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two-encodings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "control-character-in-encoding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "nul-in-header": HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "bare-carriage-return": HEAD + b"X: a\rContent-Length: 5\r\nContent-Length: 0\r\n\r\n",
    "bare-line-feeds": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 5\n\nhello",
    "chunk-size-with-prefix": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "negative-chunk-size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk-size-with-underscore": CHUNKED + b"0_5\r\nhello\r\n0\r\n\r\n",
    "chunk-size-that-overflows": CHUNKED + b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "chunk-lines-without-return": CHUNKED + b"5\nhello\n0\n\n",
    "chunk-longer-than-its-size": CHUNKED + b"5\r\nhello!!0\r\n\r\n",
    "line-feed-in-chunk-extension": CHUNKED + b"5;a=\nb\r\nhello\r\n0\r\n\r\n",
    "length-in-trailer": CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    "no-host": b"POST /predictions/echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two-hosts": HEAD + b"Host: u\r\nContent-Length: 0\r\n\r\n",
    "space-in-target": b"POST /predictions/echo x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "preface-of-http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "too-many-headers": HEAD + b"".join(b"X-%d: a\r\n" % number for number in range(500)) + b"\r\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "echo", ECHO)
    properties = {"drain_timeout": 1, "max_request_size": 100_000, "max_connections_per_client": 500}
    with RunningServer({"echo": folder}, properties) as running:
        running.wait_ready()
        yield running


@pytest.fixture(autouse=True)
def _nobody_else_notices(server: RunningServer) -> Iterator[None]:
    pid = server.server.pid
    yield
    assert server.predict("echo", "still here").text == "still here"
    assert server.server.pid == pid


def answer_to(server: RunningServer, data: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with RawClient(server.inference) as client:
        client.send(data)
        return client.read(1_000_000)


def send_until_refused(client: RawClient, data: bytes) -> None:
    """Send the same again and again. A server that has answered may go on reading for a second, but no longer."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        client.send(data)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_request_that_can_be_read_in_two_ways_is_refused_with_all_that_follows(
    server: RunningServer, shape: bytes
) -> None:
    answer = answer_to(server, shape + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Invalid HTTP message." in answer


def test_headers_without_end_are_refused(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(HEAD)
        with pytest.raises(OSError):  # the answer has come and the connection is closed
            send_until_refused(client, b"X-A: " + b"a" * 1000 + b"\r\n")


@pytest.mark.parametrize("path", ["/predictions/echo", "/ping", "/models", "/v2/models/echo/infer", "/nowhere"])
def test_a_body_without_end_is_cut_off_on_every_path(server: RunningServer, path: str) -> None:
    with RawClient(server.inference) as client:
        client.send(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with pytest.raises(OSError):
            send_until_refused(client, b"1000\r\n" + b"x" * 0x1000 + b"\r\n")


def test_hanging_up_after_any_byte_leaves_nothing_behind(server: RunningServer) -> None:
    connections = len(server.server.net_connections())
    request = HEAD + b"Content-Length: 5\r\n\r\nhello" + CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
    for end in range(0, len(request), 3):
        with RawClient(server.inference) as client:
            client.send(request[:end])
            if end % 2:  # a reset in place of an orderly end
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: len(server.server.net_connections()) <= connections, "their connections are gone")


def grpc_port(server: RunningServer) -> int:
    """The port that the log names."""
    line = next(line for line in server.log().splitlines() if "grpc_inference_port: listening" in line)
    return int(line.rpartition(":")[2].rstrip("/"))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
GARBAGE = {
    "words": b"this is no HTTP/2\r\n\r\n",
    "http1": SMUGGLED,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "nothing-but-preface": PREFACE,
    "huge-frame": PREFACE + SETTINGS + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(100_000),
    "data-for-no-stream": PREFACE + SETTINGS + b"\0\0\5\0\1\0\0\0\1hello",
    "headers-that-are-none": PREFACE + SETTINGS + b"\0\0\4\1\5\0\0\0\1\xff\xff\xff\xff",
    "continuations-without-end": PREFACE
    + SETTINGS
    + b"\0\0\0\1\0\0\0\0\1"
    + b"\0\1\0\x09\0\0\0\0\1" * 10
    + bytes(5000),
    "settings-that-are-none": PREFACE + b"\0\0\5\4\0\0\0\0\0hello",
    "resets-without-end": PREFACE + SETTINGS + b"\0\0\4\3\0\0\0\0\1\0\0\0\0" * 20_000,
    "pings-without-end": PREFACE + SETTINGS + (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 20_000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_at_the_grpc_port_hurts_nobody(server: RunningServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", grpc_port(server)), timeout=DEADLINE) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except OSError as error:  # that it hangs up is an answer, too
            assert not isinstance(error, TimeoutError)


def test_one_client_too_many_is_told_and_the_others_are_served(server: RunningServer) -> None:
    held = [RawClient(server.inference) for _ in range(500)]
    try:
        with RawClient(server.inference) as client:
            head = client.head()
            assert (head.status, head.headers["ts-error-cause"]) == (503, "too_many_connections")
        held[0].post("/predictions/echo", b"served")
        assert held[0].body(held[0].head()) == b"served"
    finally:
        for client in held:
            client.close()
    eventually(lambda: "still" in server.predict("echo", "still").text, "there is room again")
