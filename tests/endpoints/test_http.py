"""HTTP at its edges, byte for byte: pipelining, old clients, HEAD, 100-continue, and what is no HTTP."""

from collections.abc import Iterator

import pytest
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import RunningServer, model_folder

ECHO = """
def handle(data, context):
    return None if data is None else [row["body"] for row in data]
"""

STREAM = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for part in ("one ", "two "):
        send_intermediate_predict_response([part] * len(data), context.request_ids, "ok", 200, context)
    return ["three"] * len(data)
"""

PATH = "/predictions/echo"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {"echo": model_folder(folder, "echo", ECHO), "stream": model_folder(folder, "stream", STREAM)}
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[RawClient]:
    with RawClient(server.inference) as connected:
        yield connected


def test_a_connection_serves_one_request_after_another(client: RawClient) -> None:
    for number in range(3):
        client.post(PATH, b"%d" % number)
        head = client.head()
        assert (head.version, head.status, head.headers["connection"]) == ("HTTP/1.1", 200, "keep-alive")
        assert client.body(head) == b"%d" % number


def test_a_connection_stays_open_after_an_error(client: RawClient) -> None:
    client.post("/predictions/ghost", b"x")
    head = client.head()
    assert head.status == 404
    assert b"Model not found: ghost" in client.body(head)
    client.post(PATH, b"next")
    assert client.body(client.head()) == b"next"


def test_pipelined_requests_are_answered_in_order(client: RawClient) -> None:
    request = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{:02d}"
    client.send("".join(request.format(PATH, number) for number in range(20)).encode())
    assert [client.body(client.head()) for _ in range(20)] == [b"%02d" % number for number in range(20)]


def test_a_request_that_arrives_byte_by_byte(client: RawClient) -> None:
    for byte in b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc":
        client.send(bytes([byte]))
    assert client.body(client.head()) == b"abc"


def test_a_chunked_request_body(client: RawClient) -> None:
    client.send(b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    client.send(b"3\r\nabc\r\n")
    client.send(b"4;extension=1\r\ndefg\r\n0\r\n\r\n")
    assert client.body(client.head()) == b"abcdefg"


def test_a_client_that_asks_before_it_sends(client: RawClient) -> None:
    client.send(
        b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    )
    assert client.head().status == 100
    client.send(b"hello")
    assert client.body(client.head()) == b"hello"


def test_a_client_that_asks_whether_its_body_is_too_large(client: RawClient) -> None:
    client.send(
        b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    )
    head = client.head()
    assert (head.status, head.headers["content-length"]) == (413, "0")


def test_head_gets_no_body(client: RawClient) -> None:
    client.send(b"HEAD /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = client.head()
    assert head.status == 200
    assert int(head.headers["content-length"]) > 0
    client.post(PATH, b"next")
    assert client.body(client.head()) == b"next"


def test_http_1_0_gets_an_answer_and_the_end_of_the_connection(client: RawClient) -> None:
    client.send(b"POST /predictions/echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nold")
    head = client.head()
    assert (head.status, head.headers["connection"]) == (200, "close")
    assert client.body(head) == b"old"
    assert client.is_closed()


def test_http_1_0_gets_a_stream_without_chunks(client: RawClient) -> None:
    client.send(b"POST /predictions/stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
    head = client.head()
    assert "transfer-encoding" not in head.headers
    assert client.read(1000) == b"one two three"


def test_connection_close_is_obeyed(client: RawClient) -> None:
    client.post(PATH, b"last", "Connection: close")
    head = client.head()
    assert head.headers["connection"] == "close"
    assert client.body(head) == b"last"
    assert client.is_closed()


def test_percent_encoded_and_absolute_targets(client: RawClient) -> None:
    for target in ("/predictions/%65cho", "http://localhost/predictions/echo", "/predictions/echo/"):
        client.post(target, b"found")
        assert client.body(client.head()) == b"found"


@pytest.mark.parametrize(
    "message",
    [
        b"this is no HTTP\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: many\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nBroken Header\r\n\r\n",
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 9000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["words", "version", "length", "smuggling", "header", "long-line", "long-header", "tls"],
)
def test_what_is_no_http_is_refused_and_hurts_nobody(server: RunningServer, client: RawClient, message: bytes) -> None:
    client.send(message + b"\r\n\r\n")
    head = client.head()
    assert head.status == 400
    body = client.body(head)
    assert b"BadRequestException" in body
    assert b"Invalid HTTP message." in body
    assert client.is_closed()
    assert server.predict("echo", "still here").text == "still here"


def test_a_client_that_hangs_up_in_the_middle_of_a_body_hurts_nobody(server: RunningServer, client: RawClient) -> None:
    client.send(b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
    client.close()
    assert server.predict("echo", "still here").text == "still here"
