"""The clock that a suspended machine does not stop."""

import importlib
import sys
import time

import pytest

from ts.protocol import boot_clock


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells for how long the machine was suspended.")
def test_it_counts_the_time_in_which_the_machine_was_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_clock.boot_time() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_without_such_a_clock_it_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    importlib.reload(boot_clock)
    before = time.monotonic()
    assert before <= boot_clock.boot_time() <= time.monotonic()
    monkeypatch.undo()
    importlib.reload(boot_clock)
