"""Large bodies over real sockets: they are received into their own memory, whatever the event loop and the cuts."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.net.http1 import engine
from tests.net.http1.engine import LIMITS, Echo, request, split_answers

from torchserve_py.net.http1.http_connection import HttpConnection
from torchserve_py.net.http1.http_server import HttpServer
from torchserve_py.net.request_budget import RequestBudget

DEADLINE = 60.0
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Client:
    """A server with an `Echo`, and a client of it."""

    def __init__(self, application: Echo, server: HttpServer, host: tuple[str, int]) -> None:
        self.application = application
        self.server = server
        self._host = host

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._host, limit=2**24)

    async def answers(self, *pieces: bytes) -> list[tuple[int, str, bytes]]:
        """Send pieces over one connection, and return all answers."""
        reader, writer = await self.connect()
        received = asyncio.ensure_future(reader.read())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        data = await received
        writer.close()
        return split_answers(data)


def run(new_loop: NewLoop, test: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test on an event loop of that kind."""

    async def main() -> None:
        application = Echo()
        server = HttpServer(application, LIMITS, RequestBudget(20_000_000))
        listening = await asyncio.get_running_loop().create_server(lambda: HttpConnection(server), "127.0.0.1", 0)
        try:
            await test(Client(application, server, listening.sockets[0].getsockname()[:2]))
        finally:
            listening.close()
            await server.close(grace=0.0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), DEADLINE))


@pytest.fixture(autouse=True)
def _larger_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_BODY", 10_000_000)


@LOOPS
@pytest.mark.parametrize("size", [5_000, 20_000, 36_000, 66_200, 300_000, 1 << 20, 5_000_001])
@pytest.mark.parametrize("cut", [700, 40_000, 10**8])
def test_what_was_sent_is_read_and_so_is_the_next_request(new_loop: NewLoop, size: int, cut: int) -> None:
    body = random.Random(size).randbytes(size)
    sent = request("/echo?1", body) + request("/echo?2", b"small") + request("/echo?3", body[::-1], "Connection: close")
    cut = max(cut, len(sent) // 300)

    async def test(client: Client) -> None:
        found = await client.answers(*[sent[start : start + cut] for start in range(0, len(sent), cut)])
        assert found == [
            (200, "keep-alive", body),
            (200, "keep-alive", b"small"),
            (200, "close", body[::-1]),
        ]
        assert all(type(each) is bytes for each in client.application.bodies)
        assert client.server.budget.held == 0

    run(new_loop, test)


@LOOPS
def test_a_client_that_leaves_within_a_body_leaves_nothing_behind(new_loop: NewLoop) -> None:
    async def test(client: Client) -> None:
        _, writer = await client.connect()
        writer.write(request("/echo", bytes(5_000_000))[:1_000_000])
        while client.server.budget.held < 1_000_000:
            await asyncio.sleep(0.01)
        assert client.server.budget.held <= 4_000_000
        writer.transport.abort()
        while client.server.connections:
            await asyncio.sleep(0.01)
        assert client.server.budget.held == 0
        assert len(client.application.lost) == 1

    run(new_loop, test)


@LOOPS
def test_a_body_for_which_there_is_no_room_any_more_is_refused(new_loop: NewLoop) -> None:
    async def test(client: Client) -> None:
        budget, sent = client.server.budget, request("/echo", bytes(5_000_000))
        reader, writer = await client.connect()
        writer.write(sent[:500_000])
        while not budget.held:
            await asyncio.sleep(0.01)
        taken = budget.room - budget.held
        budget.take(taken)
        writer.write(sent[500_000:])
        assert b" 503 " in await reader.readline()
        writer.close()
        while client.server.connections:
            await asyncio.sleep(0.01)
        assert budget.held == taken

    run(new_loop, test)


@LOOPS
def test_a_body_that_is_not_wanted_any_more_is_dropped(new_loop: NewLoop) -> None:
    async def test(client: Client) -> None:
        sent = request("/echo", bytes(1_000_000))
        reader, writer = await client.connect()
        writer.write(sent[:400_000])
        while client.server.budget.held < 400_000:
            await asyncio.sleep(0.01)
        (early,) = client.application.requests
        client.application.answer(early, b"never mind")
        writer.write(sent[400_000:] + request("/echo", b"next", "Connection: close"))
        assert [body for _, _, body in split_answers(await reader.read())] == [b"never mind", b"next"]
        writer.close()

    run(new_loop, test)
