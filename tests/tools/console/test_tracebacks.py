"""The tracebacks that the console keeps: the same one is counted, and the oldest is forgotten."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from torchserve_py.base.logs import MODEL_LOGGER
from torchserve_py.tools.console.tracebacks import MOST_TRACEBACKS, Tracebacks


@pytest.fixture
def tracebacks() -> Iterator[Tracebacks]:
    found = Tracebacks()
    found.attach()
    yield found
    found.detach()


def log(exception: str | None, **more: Any) -> None:
    about = {"worker": "W-9000-resnet_1.0-stderr", "source": "stderr", "exception": exception, **more}
    logging.getLogger(MODEL_LOGGER).error("Invoking custom service failed.", extra=about)


def test_the_same_traceback_is_counted_with_the_latest_requests(tracebacks: Tracebacks) -> None:
    log("Traceback (most recent call last):\n  File\nValueError: no", request_ids=["a", "b"])
    log("Traceback (most recent call last):\n  File\nKeyError: 'x'", request_id="c")
    log("Traceback (most recent call last):\n  File\nValueError: no", request_ids=["d"])
    log(None)
    first, second = tracebacks.latest()
    assert (first["model"], first["error"], first["count"], first["worker"]) == (
        "resnet_1.0",
        "ValueError: no",
        2,
        "W-9000-resnet_1.0",
    )
    assert (first["requests"], second["requests"]) == (["d", "a", "b"], ["c"])
    assert first["first_at"] <= second["last_at"] <= first["last_at"]
    assert tracebacks.number == 3


def test_the_oldest_is_forgotten(tracebacks: Tracebacks) -> None:
    for each in range(MOST_TRACEBACKS + 1):
        log(f"ValueError: {each}")
    assert [each["error"] for each in tracebacks.latest()][-1] == "ValueError: 1"
