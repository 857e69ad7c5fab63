"""The frontend's end of a worker's connection, over a real socket pair."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from torchserve_py.core.workers.connection import WorkerConnection
from ts.protocol.frames import encode


def work(seconds: float) -> None:
    """Keep the processor busy."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@dataclass
class Peer:
    """The other end, and what the connection has reported."""

    sock: socket.socket
    messages: asyncio.Queue[list[Any]] = field(default_factory=asyncio.Queue)
    closed: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def on_message(self, _: WorkerConnection, message: list[Any]) -> None:
        if message[0] == "refused":
            raise ValueError("no such kind")
        if message[0] == "slow":
            work(0.002)  # longer than a connection has in one turn
        if message[0] == "dear":
            work(0.03)
        if message[0] == "stopped":
            time.sleep(0.1)
        if message[0] == "absurd":
            raise RuntimeError("this cannot happen now")
        self.messages.put_nowait(message)

    def on_close(self, _: WorkerConnection, reason: str) -> None:
        self.closed.put_nowait(reason)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[WorkerConnection, Peer]]:
    near, far = socket.socketpair()
    far.setblocking(False)
    peer = Peer(far)
    connection = WorkerConnection(peer.on_message, peer.on_close, max_frame=1000)
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=near)
    yield connection, peer
    connection.close()
    far.close()


def frame(message: list[Any]) -> bytes:
    return b"".join(encode(message))


async def test_it_is_told_when_all_that_has_come_was_handled(
    ends: tuple[WorkerConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, peer = ends
    stopped = SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: 0.0)  # a turn never takes too long
    monkeypatch.setattr("torchserve_py.core.workers.connection.time", stopped)
    handled: asyncio.Queue[int] = asyncio.Queue()
    connection.on_handled = lambda: handled.put_nowait(peer.messages.qsize())
    await peer.send(frame(["a"]) + frame(["b"]) + frame(["c"])[:4])
    assert await handled.get() == 2
    assert handled.empty()
    await peer.send(frame(["c"])[4:] + frame(["refused"]))
    assert "no such kind" in await peer.closed.get()
    assert [handled.get_nowait() for _ in range(handled.qsize())][-1] == 3


@pytest.mark.parametrize("is_read", [True, False])
async def test_it_knows_whether_its_peer_has_read_all(ends: tuple[WorkerConnection, Peer], is_read: bool) -> None:
    connection, peer = ends
    connection.send(encode(["job"]))
    if is_read:
        assert await asyncio.get_running_loop().sock_recv(peer.sock, 65536) == frame(["job"])
    peer.sock.close()
    await peer.closed.get()
    assert connection.left_unread is not is_read
    connection.send(encode(["another job"]))
    assert connection.left_unread


async def test_what_is_sent_to_a_peer_that_is_gone_is_unread(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    peer.sock.close()
    connection.send(encode(["job"]))
    await peer.closed.get()
    assert connection.left_unread


async def test_messages_arrive_however_they_are_cut(ends: tuple[WorkerConnection, Peer]) -> None:
    _, peer = ends
    data = frame(["one", 1]) + frame(["two", b"x" * 900]) + frame(["three"])
    for start in range(0, len(data), 7):
        await peer.send(data[start : start + 7])
    assert [await peer.messages.get() for _ in range(3)] == [["one", 1], ["two", b"x" * 900], ["three"]]


async def test_what_is_sent_arrives(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    large = encode(["large", b"y" * 20_000], large=True)
    connection.send(encode(["small"]))
    connection.send(large)
    received = b""
    expected = frame(["small"]) + b"".join(large)
    while len(received) < len(expected):
        received += await asyncio.get_running_loop().sock_recv(peer.sock, 65536)
    assert received == expected


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">I", 1001),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 0),
        frame(["refused"]),
        frame(["absurd"]),
        struct.pack(">I", 6) + msgpack.packb("hello"),
        struct.pack(">I", 2) + msgpack.packb([7]),
    ],
    ids=["too long", "not msgpack", "empty", "refused by its reader", "at no time", "no array", "no kind"],
)
async def test_a_peer_that_sends_no_message_loses_the_connection(
    ends: tuple[WorkerConnection, Peer], garbage: bytes
) -> None:
    _, peer = ends
    await peer.send(frame(["fine"]) + garbage + frame(["never read"]))
    assert "malformed" in await peer.closed.get()
    assert peer.messages.get_nowait() == ["fine"]
    assert peer.messages.empty()


async def test_the_log_names_a_peer_that_sends_no_message_in_one_line(
    ends: tuple[WorkerConnection, Peer], caplog: pytest.LogCaptureFixture
) -> None:
    connection, peer = ends
    connection.peer = "worker W-9000-m_1.0"
    await peer.send(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
    await peer.closed.get()
    (record,) = caplog.records
    assert record.getMessage().startswith("The connection of worker W-9000-m_1.0 is closed: it sent a malformed")
    assert record.exc_info is None


async def test_the_end_of_a_peer_is_reported_once(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    peer.sock.close()
    assert await peer.closed.get() == "closed the connection"
    connection.close()
    connection.send(encode(["into the void"]))
    await asyncio.sleep(0)
    assert peer.closed.empty()


async def test_a_paused_connection_receives_nothing_until_it_resumes(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    connection.pause()
    connection.pause()
    await peer.send(frame(["held"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.messages.empty()
    connection.resume()
    assert await peer.messages.get() == ["held"]


async def test_a_flood_of_one_worker_leaves_every_turn_to_others(ends: tuple[WorkerConnection, Peer]) -> None:
    _, peer = ends
    turns: list[int] = []

    def turn() -> None:
        turns.append(peer.messages.qsize())
        if turns[-1] < 20:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    await peer.send(frame(["slow"]) * 20)
    async with asyncio.timeout(60):
        while peer.messages.qsize() < 20:
            await asyncio.sleep(0)
    assert set(turns) >= set(range(1, 20)), "others had to wait for several messages"


async def test_what_a_worker_sent_before_it_ended_is_handled_before_its_end(
    ends: tuple[WorkerConnection, Peer],
) -> None:
    _, peer = ends
    await peer.send(frame(["slow"]) * 5)
    peer.sock.close()
    assert await peer.closed.get() == "closed the connection"
    assert peer.messages.qsize() == 5


async def test_a_connection_that_is_closed_handles_nothing_more(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    await peer.send(frame(["slow"]) * 5)
    await peer.messages.get()
    connection.close()
    assert await peer.closed.get() == "closed the connection"
    assert peer.messages.qsize() < 5


async def test_a_flood_can_be_paused(ends: tuple[WorkerConnection, Peer]) -> None:
    connection, peer = ends
    await peer.send(frame(["slow"]) * 5)
    await peer.messages.get()
    connection.pause()
    await peer.send(frame(["held"]))
    for _ in range(4):
        assert await peer.messages.get() == ["slow"]
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.messages.empty()
    connection.resume()
    assert await peer.messages.get() == ["held"]


async def test_messages_that_are_dear_to_read_leave_most_of_the_time_to_others(
    ends: tuple[WorkerConnection, Peer],
) -> None:
    _, peer = ends
    begun = time.monotonic()
    await peer.send(frame(["dear"]) * 3)
    for _ in range(3):
        await peer.messages.get()
    assert time.monotonic() - begun > 3 * 0.03 + 2 * 4 * 0.03


async def test_time_in_which_the_server_could_not_run_does_not_count(
    ends: tuple[WorkerConnection, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be stopped amid a message, or others may have the processor."""
    connection, peer = ends
    rests: list[float] = []
    fall_behind = connection._fall_behind

    def note(rest: float) -> None:
        rests.append(rest)
        fall_behind(rest)

    monkeypatch.setattr(connection, "_fall_behind", note)
    await peer.send(frame(["stopped"]) + frame(["two"]))
    assert await peer.messages.get() == ["stopped"]
    assert await peer.messages.get() == ["two"]
    assert not any(rests)
