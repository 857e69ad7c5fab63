"""What a key may ask of a server, in a second and at once."""

from hypothesis import given
from hypothesis import strategies as st

from torchserve_py.features.keys.key_limits import KeyLimits
from torchserve_py.scheduling.effects import Cause


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_as_many_as_a_second_has_may_come_in_one_moment_and_then_one_by_one() -> None:
    clock = Clock()
    limits = KeyLimits(now=clock)
    limits.change(4, None)
    assert [limits.begin() for _ in range(5)] == [None] * 4 + [Cause.rate_limited]
    clock.now += 0.25
    assert [limits.begin() for _ in range(2)] == [None, Cause.rate_limited]
    clock.now += 3600
    assert [limits.begin() for _ in range(5)] == [None] * 4 + [Cause.rate_limited]


def test_a_rate_below_one_a_second_lets_one_through_each_time() -> None:
    clock = Clock()
    limits = KeyLimits(now=clock)
    limits.change(0.5, None)
    assert [limits.begin() for _ in range(2)] == [None, Cause.rate_limited]
    clock.now += 2
    assert [limits.begin() for _ in range(2)] == [None, Cause.rate_limited]


def test_who_comes_after_the_time_that_a_refusal_names_gets_through() -> None:
    clock = Clock()
    limits = KeyLimits(now=clock)
    limits.change(0.4, None)
    assert [limits.begin() for _ in range(2)] == [None, Cause.rate_limited]
    told = limits.exceeded(Cause.rate_limited)
    assert told == ("This key may make at most 0.4 requests a second.", 3)
    clock.now += told.retry_after
    assert limits.begin() is None


def test_who_has_as_many_as_it_may_waits_for_an_answer() -> None:
    limits = KeyLimits()
    limits.change(None, 2)
    assert [limits.begin() for _ in range(3)] == [None, None, Cause.too_many_at_once]
    limits.end()
    assert limits.begin() is None


def test_what_is_refused_counts_for_nothing() -> None:
    clock = Clock()
    limits = KeyLimits(now=clock)
    limits.change(2, 1)
    assert [limits.begin() for _ in range(3)] == [None, Cause.too_many_at_once, Cause.too_many_at_once]
    limits.end()
    assert limits.begin() is None, "the two that were refused have used up nothing of the second"


def test_what_runs_counts_against_new_limits() -> None:
    limits = KeyLimits()
    limits.change(None, 5)
    assert [limits.begin() for _ in range(3)] == [None] * 3
    limits.change(None, 2)
    assert limits.begin() is Cause.too_many_at_once
    limits.change(None, None)
    assert limits.begin() is None


@given(
    st.floats(0.1, 50),
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_no_window_has_more_than_its_rate_and_a_burst(rate: float, pauses: list[float]) -> None:
    clock, begun = Clock(), []
    limits = KeyLimits(now=clock)
    limits.change(rate, None)
    for pause in pauses:
        clock.now += pause
        if limits.begin() is None:
            begun.append(clock.now)
    for first, start in enumerate(begun):
        for last in range(first, len(begun)):
            assert last - first + 1 <= max(1.0, rate) + rate * (begun[last] - start) + 1e-6
