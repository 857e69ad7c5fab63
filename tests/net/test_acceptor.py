"""Connections that are accepted and let go before anything of them has run."""

import asyncio
import socket
from collections.abc import Callable

from torchserve_py.net.acceptor import Acceptor, listening_sockets
from torchserve_py.net.admission import PROBES, Admission, ConnectionBudget, ConnectionPlace

MOST = 10
DEADLINE = 5


class Greeting(asyncio.Protocol):
    """Says the same to each client, and lets it go."""

    def __init__(self, place: ConnectionPlace, text: bytes) -> None:
        self._place = place
        self._text = text

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._text)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._place.leave()


def greeting(text: bytes) -> Callable[[ConnectionPlace], Greeting]:
    return lambda place: Greeting(place, text)


async def accepted_at_once(count: int, admission: Admission, most_handshakes: int | None = None) -> list[bytes]:
    """Have so many clients accepted in one turn of the event loop; return what each of them gets."""
    (listening,) = await listening_sockets("127.0.0.1", 0, 128)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(count)]
    acceptor = Acceptor(
        listening, admission, greeting(b"welcome"), greeting(b"probe?"), most_handshakes=most_handshakes
    )
    loop = asyncio.get_running_loop()
    try:
        for client in clients:
            client.setblocking(False)
        async with asyncio.timeout(DEADLINE):
            return [await loop.sock_recv(client, 100) for client in clients]
    finally:
        acceptor.close()
        for client in clients:
            client.close()


async def test_a_connection_that_gives_way_before_it_has_begun_is_closed() -> None:
    admission = Admission(ConnectionBudget(1000), MOST)
    count = MOST + 2 * PROBES
    got = await accepted_at_once(count, admission)
    assert got == [b"welcome"] * MOST + [b""] * PROBES + [b"probe?"] * PROBES


async def test_a_handshake_that_gives_way_before_it_has_begun_gives_its_place_back() -> None:
    admission = Admission(ConnectionBudget(1000), MOST)
    got = await accepted_at_once(MOST, admission, most_handshakes=4)
    assert got == [b""] * (MOST - 4) + [b"welcome"] * 4
    assert admission.open == 4
