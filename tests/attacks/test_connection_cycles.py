"""No connection leaves a cycle of references: memory would wait for the collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from tests.attacks.grpc_client import GrpcClient, address_of, frame
from tests.attacks.uncollected import UncollectedServer
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from websockets.sync.client import connect

ECHO = "def handle(data, context):\n    return data and [b'' for _ in data]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UncollectedServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "plain": model_folder(folder, "plain", ECHO),
        "stateful": model_folder(folder, "stateful", ECHO, "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"),
    }
    with UncollectedServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def leave_at_once(server: RunningServer) -> None:
    RawClient(server.inference).close()


def leave_after_an_answer(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.read(12)


def leave_amid_the_head(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1000)


def leave_after_nonsense(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + bytes(1000))
        client.read(12)


def leave_after_a_large_body(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(
            b"POST /predictions/plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000)
        )
        client.read(12)


def leave_before_the_answer(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.post("/predictions/plain", bytes(10))


def leave_after_a_refusal(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.post("/v2/models/plain/infer", b"[]")
        assert client.read(12) == b"HTTP/1.1 422"


def leave_a_websocket(server: RunningServer) -> None:
    with connect(f"{server.inference.replace('http', 'ws')}/sequences/stateful") as socket:
        socket.recv(DEADLINE)
        socket.socket.close()


def leave_grpc(server: RunningServer) -> None:
    with GrpcClient(address_of(server)) as client:
        client.send(frame(0, 0, 1)[:5])


@pytest.mark.parametrize(
    "leave",
    [
        leave_at_once,
        leave_after_an_answer,
        leave_amid_the_head,
        leave_after_nonsense,
        leave_after_a_large_body,
        leave_before_the_answer,
        leave_after_a_refusal,
        leave_a_websocket,
        leave_grpc,
    ],
    ids=lambda each: each.__name__,
)
def test_a_connection_goes_with_its_client(server: UncollectedServer, leave: Callable[[RunningServer], None]) -> None:
    """Each left 26 kB that waited for the collector, with WebSockets' compression 300 kB."""
    server.bodies()
    for _ in range(20):
        leave(server)
    garbage = Counter[str]()

    def all_have_left() -> bool:
        garbage.update(server.bodies()["garbage"])
        ports = {urlsplit(server.inference).port, address_of(server)[1]}
        return not [each for each in server.server.net_connections() if each.raddr and each.laddr[1] in ports]

    eventually(all_have_left, "the server knows that its clients have left", 120)
    garbage.update(server.bodies()["garbage"])
    assert not garbage
