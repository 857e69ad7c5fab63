"""How many connections a listener holds at once, and what one too many is told."""

import asyncio
import json
import time

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fakes import RawConnection

REQUEST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answered(serving: OpenEndpoints) -> RawConnection:
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
    async with asyncio.timeout(60):
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
    assert (await serving.request("GET", "/models", endpoint="management")).status == 200
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
    assert (await serving.request("GET", "/models", endpoint="management")).status == 200
    assert (await serving.request("GET", "/metrics", endpoint="metrics")).status == 200
    for connection in [*held, refused]:
        await connection.close()


@pytest.mark.parametrize("path", ["/live", "/ready", "/ping", "/v2/health/live", "/v2/health/ready"])
async def test_probes_are_answered_although_all_connections_are_taken(start: Start, path: str) -> None:
    serving = await start(max_connections=1)
    held = await answered(serving)
    for _ in range(20):
        probe = await serving.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await probe.head()
        assert head.startswith("http/1.1 200 ")
        assert "connection: close\r\n" in head
        await probe.rest()
        await probe.close()
    await held.close()


async def test_connections_above_the_limit_get_nothing_but_probes(start: Start) -> None:
    serving = await start(max_connections=1)
    held = await answered(serving)
    for head in (b"POST /predictions/m HTTP/1.1\r\nHost: localhost\r\ncontent-length: 3\r\n\r\nabc", b"GET / HT"):
        refused = await serving.raw(head)
        assert "ts-error-cause: too_many_connections\r\n" in await refused.head()
        await refused.rest()
        await refused.close()
    await held.close()


async def test_a_flood_that_asks_for_nothing_does_not_keep_probes_out(start: Start) -> None:
    serving = await start(max_connections=1)
    held = await answered(serving)
    idle = [await serving.raw(b"") for _ in range(40)]
    begun = time.monotonic()
    probe = await serving.raw(REQUEST)
    assert (await probe.head()).startswith("http/1.1 200 ")
    assert time.monotonic() - begun < 0.9
    heads = [await each.head() for each in idle]
    assert all(head.startswith("http/1.1 503 ") for head in heads)
    for each in (held, probe, *idle):
        await each.close()


async def test_connections_and_what_is_refused_are_metrics(start: Start) -> None:
    serving = await start(max_connections=1)
    held = await answered(serving)
    refused = await serving.raw(b"")
    await refused.head()
    garbage = await serving.raw(b"\x16\x03\x01 no http\r\n\r\n", endpoint="management")
    await garbage.head()
    shown = {
        (family.name, each.text): sample.value
        for family in serving.metrics.added
        for each in family.series
        for sample in each.instrument.samples()
    }
    assert shown["ts_connections", 'listener="inference",'] == 1
    assert shown["ts_connections_limit", 'listener="inference",'] == 1
    assert shown["ts_refusals_total", 'reason="listener_full",'] == 1
    assert shown["ts_refusals_total", 'reason="malformed",'] == 1
    for each in (held, refused, garbage):
        await each.close()


async def test_every_answer_of_a_server_that_leaves_closes_its_connection(start: Start) -> None:
    serving = await start()
    idle = await answered(serving)
    serving.endpoints.context.start_leaving()
    idle.writer.write(REQUEST)
    new = await serving.raw(REQUEST)
    for connection in (idle, new):
        assert "connection: close\r\n" in await connection.head()
        await connection.rest()
        assert connection.reader.at_eof()
        await connection.close()
