"""Bodies and messages that were to fill the server's memory, or to keep its event loop busy piece by piece."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.attacks.watching import Watch
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import RunningServer, model_folder

from torchserve_py.server import raise_descriptor_limit

ECHO = "def handle(data, context):\n    return data and [b'' for _ in data]\n"
HEAD = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "echo", ECHO)
    with RunningServer({"echo": folder}, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def test_bodies_that_are_never_ended_are_let_go_of_with_their_clients(server: RunningServer) -> None:
    """They were kept until the garbage collector came by, which it does late: 300 MB more in each round of 60."""
    with Watch(server):
        for _ in range(3):
            clients = [RawClient(server.inference) for _ in range(15)]
            for client in clients:
                client.send(HEAD + b"Content-Length: 5000000\r\n\r\n" + bytes(4_900_000))
            for client in clients:
                client.close()


@pytest.mark.parametrize(
    "beginning",
    [b"", HEAD + b"X-Filler: " + b"x" * 4000, HEAD + b"Content-Length: 30000\r\n\r\n" + bytes(20_000)],
    ids=["idle", "half a head", "half a body"],
)
def test_waves_of_connections(server: RunningServer, beginning: bytes) -> None:
    """Waves of 5,000 left 133 to 166 MB."""
    raise_descriptor_limit()
    with Watch(server, longest_hold=1.0):  # all clients hang up at once, and each must be seen off
        for _ in range(3):
            with ExitStack() as connections:
                for client in [connections.enter_context(RawClient(server.inference)) for _ in range(3000)]:
                    client.send(beginning)


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"2\r\nxy\r\n", b"1;a=b\r\nx\r\n"], ids=["one", "two", "extended"])
def test_tiny_chunks_of_eight_clients_at_once(server: RunningServer, chunk: bytes) -> None:
    """A probe waited for 1.9 s: a read of 256 KiB was parsed in one go, with 43,000 calls back into Python."""
    data = CHUNKED + chunk * 100_000 + b"0\r\n\r\n"
    answers: list[bytes] = []

    def send() -> None:
        with RawClient(server.inference) as client:
            client.send(data)
            answers.append(client.read(12))

    with Watch(server):
        senders = [threading.Thread(target=send) for _ in range(8)]
        for each in senders:
            each.start()
        for each in senders:
            each.join(60)
    assert answers == [b"HTTP/1.1 200"] * 8


def test_many_large_bodies_leave_no_memory_behind(server: RunningServer) -> None:
    """The allocator kept 120 MB of what the server had freed."""
    with Watch(server), ThreadPoolExecutor(20) as clients:
        answers = clients.map(lambda _: server.predict("echo", bytes(5_000_000)), range(60))
        assert {each.status_code for each in answers} == {200}
