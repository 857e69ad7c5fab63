"""The numbers themselves."""

import math

from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.base.metrics.instruments import Counter, Gauge, Histogram, number


def test_a_counter_grows() -> None:
    counter = Counter()
    counter.inc()
    counter.inc(2.5)
    assert [sample.value for sample in counter.samples()] == [3.5]


def test_a_gauge_shows_what_was_set_or_what_its_source_says() -> None:
    gauge = Gauge()
    gauge.set(4)
    assert [sample.value for sample in gauge.samples()] == [4]
    queue = [1, 2, 3]
    gauge.read_from(lambda: len(queue))
    queue.append(4)
    assert [sample.value for sample in gauge.samples()] == [4]
    queue.clear()
    assert [sample.value for sample in gauge.samples()] == [0]


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 3):
        histogram.observe(value)
    assert [tuple(sample) for sample in histogram.samples()] == [
        ("_bucket", 'le="1.0",', 2),
        ("_bucket", 'le="2.0",', 4),
        ("_bucket", 'le="+Inf",', 5),
        ("_sum", "", 8.0),
        ("_count", "", 5),
    ]


@given(st.lists(st.floats(min_value=0, max_value=1000)))
def test_every_bucket_counts_the_observations_up_to_its_bound(values: list[float]) -> None:
    bounds = (0.1, 1.0, 10.0, 100.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    *buckets, total, count = [sample.value for sample in histogram.samples()]
    assert buckets == [sum(value <= bound for value in values) for bound in (*bounds, math.inf)]
    assert count == len(values)
    assert math.isclose(total, sum(values))


def test_numbers_as_the_format_writes_them() -> None:
    values = (8, 0.25, 1e7, math.inf, -math.inf, math.nan)
    assert [number(value) for value in values] == ["8.0", "0.25", "10000000.0", "+Inf", "-Inf", "NaN"]
