"""How many connections a listener holds at once, and what one too many is told."""

import asyncio
import json

import pytest
from tests.unit.doors.conftest import OpenDoors, Start
from tests.unit.doors.fakes import RawConnection

REQUEST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answered(serving: OpenDoors) -> RawConnection:
    connection = await serving.raw(REQUEST)
    assert (await connection.head()).startswith("http/1.1 200 ")
    await connection.reader.readuntil(b"}\n")
    return connection


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"max_connections": 2}, "holds 2 connections"), ({"max_connections_per_client": 2}, "Your address has 2")],
)
async def test_one_connection_too_many_is_told_so_and_room_is_given_back(
    start: Start, settings: dict[str, int], said: str
) -> None:
    serving = await start(**settings)
    first, second = await answered(serving), await answered(serving)
    refused = await serving.raw(b"")
    head = await refused.head()
    assert head.startswith("http/1.1 503 ")
    assert "ts-error-cause: too_many_connections\r\n" in head
    assert "retry-after: 1\r\n" in head
    body = json.loads(await refused.rest())
    assert (body["type"], said in body["message"]) == ("ServiceUnavailableException", True)
    await refused.close()
    await first.close()
    async with asyncio.timeout(20):
        while True:  # the server hears of the closed connection when it can
            again = await serving.raw(REQUEST)
            if (await again.head()).startswith("http/1.1 200 "):
                break
            await again.close()
    await again.close()
    await second.close()


async def test_the_other_listeners_have_room_of_their_own(start: Start) -> None:
    serving = await start(max_connections=1)
    held = await answered(serving)
    assert (await serving.request("GET", "/models", door="management")).status == 200
    await held.close()


async def test_management_has_room_when_strangers_have_taken_all_that_is_shared(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))  # three quarters for connections, 3 in reserve
    serving = await start()
    held = [await answered(serving) for _ in range(45)]
    refused = await serving.raw(b"")
    assert (await refused.head()).startswith("http/1.1 503 ")
    assert "file descriptors" in json.loads(await refused.rest())["message"]
    assert (await serving.request("GET", "/models", door="management")).status == 200
    assert (await serving.request("GET", "/metrics", door="metrics")).status == 200
    for connection in [*held, refused]:
        await connection.close()
