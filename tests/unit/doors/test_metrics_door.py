"""The metrics listener."""

import pytest


@pytest.mark.parametrize(
    ("query", "names"), [("", None), ("?name[]=a", {"a"}), ("?name%5B%5D=a&name[]=b&other=c", {"a", "b"})]
)
async def test_names_choose_series(serving, query, names):
    answer = await serving.request("GET", f"/metrics{query}", door="metrics")
    assert (answer.status, answer.body) == (200, b"# HELP\n")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert serving.metrics.asked_for == names


async def test_further_segments_are_ignored(serving):
    assert (await serving.request("GET", "/metrics/x/y", door="metrics")).status == 200


async def test_other_methods_are_not_allowed(serving):
    assert (await serving.request("POST", "/metrics", door="metrics")).status == 405
