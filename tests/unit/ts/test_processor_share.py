"""How long threads that wait keep their processor."""

import os
import sys

import pytest

from ts.jobs.processor_share import use_processors


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "1000"),
        ({"OMP_NUM_THREADS": "2"}, "1000"),
        ({"GOMP_SPINCOUNT": "5"}, "5"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_threads_that_wait_sleep_soon_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # this process keeps its own number of threads
    use_processors(2)
    assert os.environ.get("GOMP_SPINCOUNT") == expected
