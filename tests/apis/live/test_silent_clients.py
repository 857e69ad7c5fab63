"""Clients of live sessions that say nothing: those that are gone, and those that are only slow."""

import asyncio
import time

import pytest
from tests.apis.live.conftest import Open, stateful
from tests.endpoints.fake_serving import Submitted
from tests.endpoints.socket_client import until

from torchserve_py.apis.live import socket_session


async def test_a_silent_client_is_given_up(live: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.5)
    model = stateful()
    alive = await live(model, ping_interval=None)
    await asyncio.sleep(1)
    await alive.send(body="still here")  # its library has answered the pings
    assert (await alive.receive())["step"] == 1
    silent = await live(model, ping_interval=None)
    silent.socket.transport.pause_reading()
    await asyncio.sleep(1)
    silent.socket.transport.resume_reading()
    assert (await silent.closed())[0] in (1011, 1006)


async def test_a_client_that_reads_slowly_is_not_given_up(live: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library answers no ping while it does not read."""
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.3)
    model = stateful()

    def stream(call: Submitted) -> None:
        for _ in range(40):
            call.part(b"x", more=True)
        call.part(b"y")

    model.behave = stream
    session = await live(model, ping_interval=None, max_queue=1)
    await session.send(body="a")
    await asyncio.sleep(1)
    assert [(await session.receive())["body"] for _ in range(41)] == ["x"] * 40 + ["y"]
    await session.send(body="b")
    assert (await session.receive())["step"] == 2


async def test_a_client_whose_large_steps_are_on_their_way_is_not_given_up(
    live: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read from meanwhile, its pongs included."""
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.3)
    model = stateful()
    model.behave = lambda call: None
    session = await live(model, settings={"max_request_size": 65536})
    for _ in range(3):
        await session.send(body="x" * 40_000)
    await until(lambda: len(model.calls) == 2, "as many bytes as a message may have are on their way")
    await asyncio.sleep(1)
    for number in range(3):
        await until(lambda number=number: len(model.calls) > number, "the next step comes")
        model.calls[number].part(b"done")
    assert [(await session.receive())["step"] for _ in range(3)] == [1, 2, 3]


async def test_a_client_that_waits_for_what_it_has_missed_is_not_given_up(
    live: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read from meanwhile, its pongs included."""
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.3)
    model = stateful(is_durable=True)
    model.behave = lambda call: None
    session = await live(model, ping_interval=None)
    await session.send(resume="a token", after=0, unanswered=[1])
    await until(lambda: len(model.calls) == 1, "the missed answer is asked for")
    await asyncio.sleep(1)
    model.calls[0].part(b"late")
    assert (await session.receive())["body"] == "late"


async def test_a_client_that_leaves_its_pongs_unread_is_given_up(live: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read from once they fill the buffers, and no answer waits for it to read."""
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.5)
    monkeypatch.setattr(socket_session, "_CLOSE_LIMIT", 0.1)
    model = stateful()
    session = await live(model, ping_interval=None)
    session.socket.transport.pause_reading()
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125  # masked with zeros
    session.socket.transport.write(ping * 150_000)
    await until(lambda: model.released, "the session is over")
    session.socket.transport.abort()


async def test_a_client_that_sends_a_large_step_slowly_is_not_given_up(
    live: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can answer no ping before the end of its message."""
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.1)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.5)
    session = await live(stateful(), ping_interval=None)
    session.socket.transport.pause_reading()  # so that it answers no ping within its message
    step = b'{"body": "%s"}' % (b"x" * 87)
    for piece in (bytes((0x81, 0x80 + len(step), 0, 0, 0, 0)), *(step[n : n + 5] for n in range(0, len(step), 5))):
        session.socket.transport.write(piece)
        await asyncio.sleep(0.1)
    session.socket.transport.resume_reading()
    assert (await session.receive())["step"] == 1


async def test_no_client_is_given_up_because_the_server_was_frozen(live: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_session, "_PING_AFTER", 0.2)
    monkeypatch.setattr(socket_session, "_GIVE_UP_AFTER", 0.8)
    session = await live(stateful(sequence_max_idle_ms=1000), ping_interval=None)
    await session.send(body="a")
    assert (await session.receive())["step"] == 1
    for number in (2, 3):
        time.sleep(2)
        await asyncio.sleep(0.05)
        await session.send(body="b")
        assert (await session.receive())["step"] == number
