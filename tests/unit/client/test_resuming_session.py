"""A session of the client against a server that says what the test wants."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from websockets.asyncio.server import ServerConnection, serve

from torchserve_py.client import AsyncSession, SequenceLost, SessionClosed, resuming_session

HEADER = struct.Struct(">BBHI")
LIMIT = 60
Behave = Callable[[ServerConnection, int], Awaitable[None]]


def told(last: int = 0, token: str | None = "token", window: int = 4) -> bytes:
    session = {"sequence": "live-1", "resume": token, "last": last, "window": window, "max_message_size": 100}
    return HEADER.pack(2, 0, 0, 0) + json.dumps(session).encode()


def unknown(number: int) -> bytes:
    said = json.dumps({"status": 503, "cause": "outcome_unknown", "message": ""}).encode()
    return HEADER.pack(4, 0, 503, number) + said


def answer(number: int, body: bytes) -> bytes:
    return HEADER.pack(1, 0, 200, number) + body


@contextlib.asynccontextmanager
async def session_with(behave: Behave, patience: float = LIMIT, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session; ``behave`` gets each connection after the greeting, and its number."""
    count = 0

    async def run(socket: ServerConnection) -> None:
        nonlocal count
        count += 1
        await socket.send(told())
        await behave(socket, count)

    async with serve(run, "127.0.0.1", 0, subprotocols=["sequences.binary.v1"], **options) as server:
        host, port = next(iter(server.sockets)).getsockname()
        async with asyncio.timeout(LIMIT), AsyncSession(f"ws://{host}:{port}", {}, patience) as session:
            yield session
            server.close()


async def test_the_last_missing_answer_may_come_when_the_session_is_resumed() -> None:
    async def behave(socket: ServerConnection, count: int) -> None:
        await socket.recv()
        if count == 1:
            socket.transport.abort()
            return
        await socket.send(answer(1, b"A"))
        await socket.send(told(last=1))
        await socket.wait_closed()

    async with session_with(behave) as session:
        assert (await session.step("a")).body == b"A"


async def test_a_last_answer_that_comes_before_the_connection_breaks_again_counts() -> None:
    """The connection breaks while the session is resumed, and nobody knows the ended sequence any longer."""

    async def behave(socket: ServerConnection, count: int) -> None:
        await socket.recv()
        if count == 2:
            await socket.send(answer(1, b"A"))
        socket.transport.abort()

    async with session_with(behave) as session:
        assert (await session.step("a", end=True)).body == b"A"
        with pytest.raises(SessionClosed):
            await session.step("b")


async def test_a_session_that_has_ended_is_resumed_for_answers_to_earlier_steps() -> None:
    asked: list[bytes] = []

    async def behave(socket: ServerConnection, count: int) -> None:
        if count == 1:
            await socket.recv()
            await socket.send(unknown(1))
            await socket.recv()
            await socket.send(answer(2, b"B"))
        else:
            asked.append(cast(bytes, await socket.recv())[HEADER.size :])
            await socket.send(answer(1, b"A"))
            await socket.send(told(last=2))
        await socket.close(1000, "The sequence has ended.")

    async with session_with(behave) as session:
        await session.send("a")
        await session.send("b", end=True)
        assert [(await session.receive()).body, (await session.receive()).body] == [b"A", b"B"]
        with pytest.raises(SessionClosed):
            await session.step("c")
    assert [json.loads(each) for each in asked] == [{"resume": "token", "after": 2, "unanswered": [1]}]


async def test_answers_that_came_before_a_sequence_was_lost_are_handed_out() -> None:
    async def behave(socket: ServerConnection, count: int) -> None:
        await socket.recv()
        if count == 1:
            await socket.recv()
            socket.transport.abort()
            return
        await socket.send(answer(1, b"A"))
        await socket.close(4410, "sequence_lost")

    async with session_with(behave) as session:
        await session.send("a")
        await session.send("b")
        assert (await session.receive()).body == b"A"
        with pytest.raises(SequenceLost):
            await session.receive()


async def test_a_slow_caller_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is waiting for the caller than the library takes at once, for longer than a silent server is suffered."""
    monkeypatch.setattr(resuming_session, "_SILENCE", 0.2)

    async def behave(socket: ServerConnection, count: int) -> None:
        assert count == 1, "the client has connected again"
        await socket.recv()
        for _ in range(2000):
            await socket.send(HEADER.pack(1, 1, 200, 1) + b"x" * 10_000)
        await socket.send(answer(1, b""))
        await socket.wait_closed()

    async with session_with(behave, ping_interval=None) as session:
        parts = [len(part) async for part in pausing(session.stream("a"), 1.0)]
        assert sum(parts) == 20_000_000


async def pausing(parts: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Take one part, and the others after a while."""
    yield await anext(parts)
    await asyncio.sleep(seconds)
    async for part in parts:
        yield part


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming_session, "_SILENCE", 0.1)
    connected_again = asyncio.Event()

    async def behave(socket: ServerConnection, count: int) -> None:
        if count == 1:
            await socket.recv()
            socket.transport.pause_reading()
            await connected_again.wait()
            return
        connected_again.set()
        await socket.recv()
        await socket.send(answer(1, b"A"))
        await socket.send(told(last=1))
        await socket.wait_closed()

    async with session_with(behave, close_timeout=0.1) as session:
        assert (await session.step("a")).body == b"A"


async def test_a_session_that_is_sending_takes_answers() -> None:
    """A server reads no further step while the answers to earlier ones are not read."""

    async def behave(socket: ServerConnection, count: int) -> None:
        assert count == 1
        for number in (1, 2, 3):
            await socket.recv()
            for _ in range(20):
                await socket.send(HEADER.pack(1, 1, 200, number) + b"y" * 1_000_000)
            await socket.send(answer(number, b""))
        await socket.wait_closed()

    async with session_with(behave, max_size=None, max_queue=1) as session:
        for _ in range(3):
            await session.send(b"x" * 8_000_000)
        assert [len((await session.receive()).body) for _ in range(3)] == [20_000_000] * 3


async def test_a_session_that_is_over_stays_so() -> None:
    async def behave(socket: ServerConnection, count: int) -> None:
        assert count == 1
        await socket.recv()
        await socket.close(4410, "sequence_expired: no step for 2 seconds")

    async with session_with(behave) as session:
        with pytest.raises(SequenceLost) as lost:
            await session.step("a")
        assert lost.value.cause == "sequence_expired"
        with pytest.raises(SequenceLost):
            await session.receive()


async def test_a_step_that_cannot_be_run_in_time_ends_the_session() -> None:
    async def behave(socket: ServerConnection, count: int) -> None:
        while True:
            (_, _, _, number) = HEADER.unpack_from(await socket.recv())
            said = {"status": 503, "cause": "no_worker", "message": "no"}
            await socket.send(HEADER.pack(4, 0, 503, number) + json.dumps(said).encode())

    async with session_with(behave, patience=0.5) as session:
        for ask in (lambda: session.step("a"), session.receive):
            with pytest.raises(SessionClosed, match=r"not within 0.5 seconds: the step could not be run"):
                await ask()
