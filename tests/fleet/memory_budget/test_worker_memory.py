"""What processes take is read from the kernel."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torchserve_py.fleet.memory_budget.worker_memory import measure, reset_peak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MEGABYTE = 1_000_000
KEEPS = "kept = bytes(b'x') * 50_000_000"
GIVES_BACK = "given_back = bytes(b'x') * 80_000_000\ndel given_back"


@contextmanager
def process(code: str) -> Iterator[int]:
    """Run code, and yield the id of the process while it waits."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        yield running.pid
        running.communicate(b"\n\n", timeout=180)


def test_what_a_process_has_counts() -> None:
    with process("") as bare, process(KEEPS) as large:
        measured = measure({bare: [bare], large: [large]})
    assert 45 * MEGABYTE < measured[large].now - measured[bare].now < 60 * MEGABYTE


def test_all_ranks_of_a_worker_count_once() -> None:
    with process(KEEPS) as first, process(KEEPS) as second:
        one = measure({first: [first]})[first]
        both = measure({first: [first, second, second]})[first]
    assert both.now > 1.7 * one.now
    assert both.now < 2.3 * one.now


def test_a_peak_between_two_looks_is_not_missed_until_it_is_reset() -> None:
    with process(GIVES_BACK) as pid:
        before = measure({pid: [pid]})[pid]
        reset_peak([pid])
        after = measure({pid: [pid]})[pid]
    assert before.peak - before.now > 70 * MEGABYTE
    assert after.peak - after.now < 10 * MEGABYTE


def test_a_process_that_is_gone_is_left_out() -> None:
    with process("") as pid:
        pass
    assert measure({pid: [pid]}) == {}
    reset_peak([pid])
