"""What the console remembers of a model: rates, means and percentiles, in rings of a fixed size."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.base.metrics.catalog import SECONDS_BOUNDS
from torchserve_py.core.serving.model_activity import Activity, Timing
from torchserve_py.tools.console.history import COLUMNS, NOTHING, ModelHistory, Ring, point_between, sum_of


def times(count: int, seconds: float) -> Timing:
    """So many durations of this length."""
    counts = [0] * (len(SECONDS_BOUNDS) + 1)
    counts[next(index for index, bound in enumerate((*SECONDS_BOUNDS, math.inf)) if seconds <= bound)] = count
    return Timing(tuple(counts), count * seconds)


def named(before: Activity, now: Activity, seconds: float = 1.0) -> dict[str, float]:
    return dict(zip(COLUMNS, point_between(before, now, seconds), strict=True))


def point(value: float) -> list[float]:
    return [value] * len(COLUMNS)


def test_rates_are_per_second_and_count_failures_as_answers() -> None:
    now = NOTHING._replace(succeeded=6, failures={"queue_full": 1, "handler_error": 3})
    found = named(NOTHING, now, 2.0)
    assert (found["answers"], found["failures"]) == (5.0, 2.0)


def test_what_did_not_happen_has_no_mean() -> None:
    found = named(NOTHING, NOTHING)
    assert (found["answers"], found["queued"]) == (0.0, 0)
    assert all(math.isnan(found[name]) for name in ("batch_size", "waiting", "waiting_p99", "handler", "handler_p99"))


def test_batches_and_times_are_those_since_the_last_sample() -> None:
    before = NOTHING._replace(batches=(5, *NOTHING.batches[1:]), batched=5, handler=times(100, 10.0))
    counts = [a + b for a, b in zip(before.handler.counts, times(10, 0.004).counts, strict=True)]
    now = before._replace(batches=(6, 1, *NOTHING.batches[2:]), batched=8, handler=Timing(counts, 1000.04))
    found = named(before, now)
    assert found["batch_size"] == 1.5
    assert found["handler"] == pytest.approx(4.0)
    assert 2.5 < found["handler_p99"] <= 5.0  # the bounds of the bucket of 4 ms


def test_streams_have_a_time_to_their_first_part_and_between_parts() -> None:
    found = named(NOTHING, NOTHING._replace(first_part=times(10, 0.2), next_part=times(100, 0.02)))
    assert 100 < found["first_part_p99"] <= 250  # the bounds of the buckets
    assert 10 < found["next_part_p50"] <= 25
    assert math.isnan(named(NOTHING, NOTHING)["first_part_p50"])


@given(st.lists(st.floats(0.0001, 200), min_size=1, max_size=50))
def test_a_percentile_lies_in_the_bucket_of_the_real_one(durations: list[float]) -> None:
    merged = [0] * (len(SECONDS_BOUNDS) + 1)
    for each in durations:
        merged = [a + b for a, b in zip(merged, times(1, each).counts, strict=True)]
    found = named(NOTHING, NOTHING._replace(waiting=Timing(tuple(merged), sum(durations))))["waiting_p99"] / 1000
    real = sorted(durations)[math.ceil(0.99 * len(durations)) - 1]
    bounds = (0.0, *SECONDS_BOUNDS)
    lower = max(bound for bound in bounds if bound < real)
    assert lower <= found <= next((bound for bound in SECONDS_BOUNDS if bound >= real), SECONDS_BOUNDS[-1])


def test_a_ring_keeps_the_last_points_in_order() -> None:
    ring = Ring(1, 5)
    for tick in range(100, 108):
        ring.add(tick, point(tick))
    assert ring.latest("queued", 3) == [105, 106, 107]
    assert ring.as_json()["columns"]["queued"] == [103, 104, 105, 106, 107]


def test_a_ring_that_is_not_full_begins_with_nothing() -> None:
    ring = Ring(1, 4)
    ring.add(7, point(1.23456))
    assert ring.as_json()["columns"]["answers"] == [None, None, None, 1.235]


def test_seconds_that_were_missed_have_the_point_that_covers_them() -> None:
    ring = Ring(1, 5)
    ring.add(10, point(1))
    ring.add(13, point(2))
    assert ring.latest("answers", 4) == [1, 2, 2, 2]
    ring.add(10_000, point(3))
    assert ring.latest("answers", 5) == [3] * 5


def test_a_history_has_five_minutes_by_seconds_and_an_hour_by_ten_seconds() -> None:
    history = ModelHistory(0, NOTHING, 0.0)
    for second in range(1, 5001):
        history.sample(second, NOTHING._replace(succeeded=3 * second), float(second))
    shown = history.as_json()
    for ring, length in (("seconds", 300), ("coarse", 360)):
        assert shown[ring]["columns"]["answers"] == [3.0] * length


def test_the_history_of_a_new_version_begins_with_what_came_before_the_first_sample() -> None:
    now = NOTHING._replace(succeeded=2, failures={"handler_error": 3}, batches=(5, *NOTHING.batches[1:]))
    history = ModelHistory(19, now, 19.0, is_new=True)
    assert (history.failures, history.batches[0]) == ({"handler_error": 3}, 5)
    assert history.seconds.latest("failures", 1) == [3.0]
    history.sample(20, now, 20.0)
    assert history.seconds.latest("failures", 2) == [3.0, 0.0]
    assert history.coarse.latest("failures", 1) == [1.5]


def test_a_sum_leaves_out_what_has_no_sum() -> None:
    busy: dict[str, Any] = dict(zip(COLUMNS, point(2.0), strict=True))
    summed = dict(zip(COLUMNS, sum_of([list(busy.values()), point(math.nan), point(1.0)]), strict=True))
    assert (summed["answers"], summed["memory"]) == (3.0, 3.0)
    assert math.isnan(summed["handler"])
    assert sum_of([])[0] == 0


def test_failures_and_batches_are_those_of_the_last_hour() -> None:
    history = ModelHistory(0, NOTHING._replace(failures={"old": 7}), 0.0)
    assert (history.failures, sum(history.batches)) == ({}, 0)
    for second in range(1, 7201):
        before, after = min(second, 600), max(0, second - 5400)
        now = NOTHING._replace(failures={"old": 7 + before, "new": after}, batches=(second, *NOTHING.batches[1:]))
        history.sample(second, now, float(second))
        if second == 600:
            assert (history.failures, history.batches[0]) == ({"old": 600}, 600)
    assert history.failures == {"new": 1800}
    assert history.batches[0] == 3600
