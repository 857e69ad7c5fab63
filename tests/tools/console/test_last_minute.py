"""What the table of models shows of the last minute, and when a model is listed as wrong."""

from datetime import UTC, datetime
from typing import Any

import pytest

from torchserve_py.base.metrics.catalog import SECONDS_BOUNDS
from torchserve_py.core.serving.model_activity import Activity, Timing
from torchserve_py.core.serving.serving import WorkerStatus
from torchserve_py.tools.console.history import NOTHING
from torchserve_py.tools.console.last_minute import LastMinute, trouble


def worker(name: str = "9000", **more: Any) -> WorkerStatus:
    shown: dict[str, Any] = {
        "id": name,
        "started_at": datetime.now(UTC),
        "ready": True,
        "memory": 0,
        "pid": 1,
        "gpu": False,
        "gpu_usage": "",
        "gpu_memory": None,
        "failure": "",
        "gave_up": False,
    }
    return WorkerStatus(**{**shown, **more})


def after(activity: Activity, seconds: int, minute: LastMinute, *workers: WorkerStatus) -> dict[str, Any]:
    """Return the figures after so many seconds without change."""
    figures: dict[str, Any] = {}
    for tick in range(1, seconds + 1):
        figures = minute.sample(tick, activity, workers)
    return figures


def slow(count: int) -> Timing:
    """So many durations within the fourth bucket."""
    return Timing((0, 0, 0, count, *[0] * (len(SECONDS_BOUNDS) - 3)), 0.0)


def test_failures_and_times_stay_for_a_minute_and_are_gone_after_it() -> None:
    busy = NOTHING._replace(succeeded=13, failures={"handler_error": 7}, waiting=slow(20), handler=slow(20))
    minute = LastMinute(NOTHING)
    shown = after(busy, 59, minute)
    assert (shown["answers"], shown["failures"]) == (20, 7)
    assert 1000 * SECONDS_BOUNDS[2] < shown["wait_p99"] <= 1000 * SECONDS_BOUNDS[3]
    assert shown["handler_p99"] == shown["wait_p99"]
    gone = after(busy, 140, minute)
    assert (gone["answers"], gone["failures"], gone["wait_p99"], gone["handler_p99"]) == (0, 0, None, None)


def test_what_the_handler_has_refused_is_an_answer_and_no_failure() -> None:
    refused = NOTHING._replace(succeeded=1, failures={"handler_error": 1, "refused_by_handler": 2})
    shown = after(refused, 5, LastMinute(NOTHING))
    assert (shown["answers"], shown["failures"]) == (4, 1)


def test_a_worker_that_was_killed_is_trouble_for_a_minute() -> None:
    minute, killed = LastMinute(NOTHING), worker(deaths=1, last_end="was killed by SIGKILL")
    shown = minute.sample(1, NOTHING, [killed])
    assert shown["deaths"] == 1
    assert trouble(shown, [killed]) == {"why": "was killed by SIGKILL", "worker": "9000", "starts_at": None}
    assert trouble(after(NOTHING, 140, minute, killed), [killed]) is None


def test_a_worker_that_waits_for_its_next_start_is_trouble_until_then() -> None:
    waiting = worker("9001", ready=False, deaths=3, last_end="exited with code 3", starts_at=1000.0)
    fine = worker(last_end="was killed by SIGTERM")
    shown = after(NOTHING, 140, LastMinute(NOTHING), fine, waiting)
    assert shown["deaths"] == 0
    assert trouble(shown, [fine, waiting]) == {"why": "exited with code 3", "worker": "9001", "starts_at": 1000.0}
    assert trouble(shown, [worker(ready=False, waits=True, starts_at=1000.0)]) is None  # it is to be placed first


@pytest.mark.parametrize("causes", [{"response_timeout": 2}, {"response_timeout": 2, "handler_error": 5}])
def test_requests_that_get_no_answer_in_time_are_trouble(causes: dict[str, int]) -> None:
    shown = after(NOTHING._replace(failures=causes), 1, LastMinute(NOTHING))
    assert shown["timeouts"] == 2
    assert trouble(shown, [worker()]) == {"why": "", "worker": None, "starts_at": None}


def test_failures_of_the_code_alone_are_no_trouble_of_workers() -> None:
    shown = after(NOTHING._replace(failures={"handler_error": 5}), 1, LastMinute(NOTHING))
    assert trouble(shown, [worker()]) is None
