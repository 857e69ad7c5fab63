"""How many connections a listener holds at once, and what one too many is told."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.api.conftest import Serving, Start
from tests.unit.api.fakes import RawConnection

from torchserve_py.api.connections import ConnectionLimits

REQUEST = b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n"


async def answered(serving: Serving) -> RawConnection:
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


def test_clients_are_counted_one_by_one() -> None:
    limits = ConnectionLimits(100, 1)
    assert limits.enter("10.0.0.1") is None
    assert limits.enter("10.0.0.2") is None
    assert limits.enter(None) is None
    assert limits.enter(None) is None
    assert limits.enter("10.0.0.1") is not None
    limits.leave("10.0.0.1")
    limits.leave("10.0.0.1")
    assert limits.enter("10.0.0.1") is None


def test_a_quarter_of_the_file_descriptors_is_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))
    assert ConnectionLimits(32768, None).total == 750
    assert ConnectionLimits(100, None).total == 100
