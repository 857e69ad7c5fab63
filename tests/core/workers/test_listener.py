"""The workers' socket: who is let in."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.core.workers import listener as module
from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.listener import WorkerListener
from ts.protocol.frames import encode
from ts.protocol.messages import HELLO, Hello


class Owner:
    """Takes connections."""

    def __init__(self) -> None:
        self.channels: asyncio.Queue[str] = asyncio.Queue()
        self.messages: asyncio.Queue[list[Any]] = asyncio.Queue()

    def connected(self, connection: WorkerConnection, hello: Hello) -> None:
        connection.on_message = lambda _, message: self.messages.put_nowait(message)
        connection.on_close = lambda _, reason: None
        self.channels.put_nowait(hello["channel"])


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[WorkerListener]:
    listener = WorkerListener(tmp_path)
    await listener.start()
    yield listener
    await listener.close()


@pytest.fixture
def owner() -> Owner:
    return Owner()


async def connect(listener: WorkerListener, message: list[Any] | bytes) -> asyncio.StreamReader:
    """Connect and send a first message; the reader sees the end of the connection."""
    reader, writer = await asyncio.open_unix_connection(str(listener.path))
    writer.write(message if isinstance(message, bytes) else b"".join(encode(message)))
    return reader


def hello(token: str, channel: str = "jobs") -> list[Any]:
    return [HELLO, {"token": token, "channel": channel, "rank": 0}]


async def test_a_worker_with_its_token_is_handed_to_its_owner(listener: WorkerListener, owner: Owner) -> None:
    listener.expect(Owner())
    token = listener.expect(owner)
    for channel in ("jobs", "heartbeat"):
        await connect(listener, b"".join(encode(hello(token, channel))) + b"".join(encode(["next"])))
        assert await owner.channels.get() == channel
        assert await owner.messages.get() == ["next"]


async def test_tokens_are_not_guessable_and_not_shared(listener: WorkerListener, owner: Owner) -> None:
    tokens = {listener.expect(owner) for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize(
    "message",
    [
        hello("wrong"),
        hello(""),
        hello("gärtner"),
        [HELLO],
        [HELLO, {}],
        [HELLO, "token"],
        ["results", [], 0.0],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 5000,
    ],
    ids=["wrong token", "no token", "not ASCII", "no content", "empty", "no map", "other kind", "HTTP", "long"],
)
async def test_strangers_are_turned_away(listener: WorkerListener, owner: Owner, message: list[Any] | bytes) -> None:
    listener.expect(owner)
    reader = await connect(listener, message)
    assert await reader.read() == b""
    assert owner.channels.empty()


async def test_which_process_a_worker_is_the_kernel_tells(listener: WorkerListener) -> None:
    connections: asyncio.Queue[WorkerConnection] = asyncio.Queue()

    class Notes:
        def connected(self, connection: WorkerConnection, hello: Hello) -> None:
            connection.on_close = lambda _, reason: None
            connections.put_nowait(connection)

    kind, said = hello(listener.expect(Notes()))
    await connect(listener, [kind, {**said, "pid": 1}])
    assert (await connections.get()).peer_pid == os.getpid()


async def test_a_forgotten_token_is_worth_nothing(listener: WorkerListener, owner: Owner) -> None:
    token = listener.expect(owner)
    listener.forget(token)
    assert await (await connect(listener, hello(token))).read() == b""
    assert owner.channels.empty()


async def test_who_says_nothing_is_turned_away(listener: WorkerListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_LIMIT", 0.01)
    assert await (await connect(listener, b"")).read() == b""


async def test_only_the_servers_user_can_reach_the_socket(listener: WorkerListener) -> None:
    assert stat.S_IMODE(listener.path.parent.stat().st_mode) == 0o700


async def test_nothing_is_left_when_it_closes(tmp_path: Path) -> None:
    listener = WorkerListener(tmp_path)
    await listener.start()
    reader = await connect(listener, b"")
    await listener.close()
    assert await reader.read() == b""
    assert list(tmp_path.iterdir()) == []


async def test_a_temporary_directory_with_too_long_a_path_is_named(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(OSError, match=r"longer than the 107 bytes.*TEMP"):
        await WorkerListener(deep).start()
    assert list(deep.iterdir()) == []


async def test_strangers_are_limited_and_keep_no_worker_out(
    listener: WorkerListener, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_STRANGERS", 10)
    silent = []
    loop = asyncio.get_running_loop()
    for _ in range(50):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].setblocking(False)
        await loop.sock_connect(silent[-1], str(listener.path))
    async with asyncio.timeout(60):
        for stranger in silent[:40]:
            assert await loop.sock_recv(stranger, 1) == b""
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
    await connect(listener, hello(listener.expect(owner)))
    async with asyncio.timeout(60):
        assert await owner.channels.get() == "jobs"
    for stranger in silent:
        stranger.close()
