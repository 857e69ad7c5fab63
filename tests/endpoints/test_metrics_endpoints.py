"""The metrics listener."""

import asyncio

import pytest

from torchserve_py.net import turns


@pytest.mark.parametrize(
    ("query", "names"), [("", None), ("?name[]=a", {"a"}), ("?name%5B%5D=a&name[]=b&other=c", {"a", "b"})]
)
async def test_names_choose_series(serving, query, names):
    answer = await serving.request("GET", f"/metrics{query}", endpoint="metrics")
    assert (answer.status, answer.body) == (200, b"# HELP\n")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert serving.metrics.asked_for == names


async def test_many_series_do_not_hold_the_event_loop(serving, monkeypatch):
    monkeypatch.setattr(turns, "_SLICE", 0.0)
    turns_of_lines: set[int] = set()
    loop, seen = asyncio.get_running_loop(), [0]

    def turn():
        seen.append(seen[-1] + 1)
        loop.call_soon(turn)

    def lines():
        for number in range(1000):
            turns_of_lines.add(len(seen))
            yield f"series {number}\n"

    serving.metrics.exposed = lines()
    loop.call_soon(turn)
    answer = await serving.request("GET", "/metrics", endpoint="metrics")
    assert answer.body.decode().splitlines() == [f"series {number}" for number in range(1000)]
    assert len(turns_of_lines) > 500


async def test_further_segments_are_ignored(serving):
    assert (await serving.request("GET", "/metrics/x/y", endpoint="metrics")).status == 200


async def test_other_methods_are_not_allowed(serving):
    assert (await serving.request("POST", "/metrics", endpoint="metrics")).status == 405
