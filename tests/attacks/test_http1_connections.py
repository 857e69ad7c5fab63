"""Clients that hold connections, or break off what they send: they are told so once, and nobody else notices."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.ports import free_ports

ECHO = "def handle(data, context):\n    return data and [row.get('body') for row in data]\n"
PATHS = ("/predictions/echo", "/v2/models/echo/infer", "/invocations?model_name=echo")
#: Further connections may ask for probes, and for nothing else.
NO_PROBE = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "echo", ECHO)
    properties = {"drain_timeout": 1, "request_head_timeout": 1, "max_connections_per_client": 60}
    with RunningServer({"echo": folder}, properties) as running:
        running.wait_ready()
        yield running


def chunked(path: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def test_connections_with_one_byte_do_not_stay(server: RunningServer) -> None:
    """Their first byte comes before the server has done anything with the connection."""
    held = [RawClient(server.inference) for _ in range(50)]
    try:
        for client in held:
            client.send(b"G")
        for client in held:
            assert client.head().status == 408
            while client.read(1000):
                pass
    finally:
        for client in held:
            client.close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("behind", [b"", b"5\r\nhello\r\n"], ids=["at-once", "behind-a-chunk"])
def test_a_body_that_turns_malformed_is_refused_at_once(server: RunningServer, path: str, behind: bytes) -> None:
    log = server.log()
    for pieces in ((chunked(path) + behind + b"zzz\r\n",), (chunked(path) + behind, b"zzz\r\n")):
        with RawClient(server.inference) as client:
            for piece in pieces:
                client.send(piece)
            head = client.head()
            assert (head.status, head.headers["connection"]) == (400, "close")
            client.body(head)
            assert client.is_closed()
    written = server.log()[len(log) :]
    assert "Traceback" not in written
    assert "ERROR" not in written


def test_a_malformed_chunk_behind_a_whole_request(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" + chunked(PATHS[0]) + b"zzz\r\n")
        head = client.head()
        assert (head.status, head.headers["connection"]) == (200, "keep-alive")
        client.body(head)
        head = client.head()
        assert (head.status, head.headers["connection"]) == (400, "close")


def test_one_client_never_has_more_connections_than_it_may(server: RunningServer) -> None:
    """Also while some of them come and go, which may not make room for others twice."""
    held: list[RawClient] = []
    try:
        for _ in range(3):
            held += [RawClient(server.inference) for _ in range(40)]
            assert served(held) <= 60
            for client in held[::2]:
                client.close()
            held = held[1::2]
    finally:
        for client in held:
            client.close()
    eventually(lambda: requests.get(f"{server.inference}/ping", timeout=DEADLINE).status_code == 200, "there is room")


def served(clients: list[RawClient]) -> int:
    count = 0
    for client in clients:
        try:
            client.send(NO_PROBE)
            head = client.head()
            client.body(head)
        except (OSError, ValueError):
            continue
        count += head.status == 200
    return count


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "tls/1.0"])
def test_a_request_behind_one_that_wants_another_protocol_is_answered(server: RunningServer, upgrade: str) -> None:
    head = f"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n".encode()
    with RawClient(server.inference) as client:
        client.send(head + b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"Healthy" in client.body(client.head())
        assert b"Live" in client.body(client.head())


def test_connections_in_the_middle_of_a_tls_handshake_count(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "echo", ECHO)
    port = free_ports(1)[0]
    properties = {"drain_timeout": 1, "max_connections": 5, "inference_address": f"https://127.0.0.1:{port}"}
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    with RunningServer({"echo": folder}, properties) as server:
        held = [socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) for _ in range(5)]
        for each in held:
            each.sendall(b"\x16\x03")
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as one_too_many:
            one_too_many.sendall(b"\x16\x03")
            assert hangs_up(one_too_many)
        assert requests.get(f"{server.management}/models", timeout=DEADLINE).status_code == 200
        for each in held:
            each.close()

        def has_room() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as plain:
                try:
                    trusting.wrap_socket(plain).close()
                except OSError:
                    return False
            return True

        eventually(has_room, "there is room again")


def hangs_up(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
