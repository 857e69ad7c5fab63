"""Sessions that fit are in time, whatever their phases: the test for capacity against schedules played to their end."""

import heapq
import math

import hypothesis.strategies as st
from hypothesis import given, settings
from tests.examples import examples

from torchserve_py.core.scheduling.capacity import SessionKind, fits, load, longest_batch, slack
from torchserve_py.core.scheduling.step_times import StepTimes

#: Milliseconds, so that sums are exact.
kinds = st.builds(
    lambda period, share: SessionKind(float(period), float(max(1, period // share))),
    st.sampled_from([20, 40, 60, 100]),
    st.sampled_from([1, 2]),
)
tables = st.builds(
    lambda base, step, size: (0.0, *(base + step * number for number in range(1, size + 1))),
    st.integers(0, 6),
    st.integers(1, 6),
    st.integers(1, 6),
)


def misses(sessions: list[SessionKind], phases: list[int], table: tuple[float, ...]) -> int:
    """Play the sessions on an idle worker, the earliest deadline first; return how many steps are late."""
    arrivals = sorted(
        (phase + number * kind.period, phase + number * kind.period + kind.within)
        for kind, phase in zip(sessions, phases, strict=True)
        for number in range(12)
    )
    waiting: list[float] = []
    now, late, place = 0.0, 0, 0
    while place < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[place][0])
        while place < len(arrivals) and arrivals[place][0] <= now:
            heapq.heappush(waiting, arrivals[place][1])
            place += 1
        batch = [heapq.heappop(waiting) for _ in range(min(len(waiting), len(table) - 1))]
        now += table[len(batch)]
        late += sum(due < now for due in batch)
    return late


@settings(max_examples=examples(200))
@given(data=st.data(), sessions=st.lists(kinds, min_size=1, max_size=8), table=tables)
def test_what_fits_is_never_late(data, sessions, table):
    counts = {kind: sessions.count(kind) for kind in sessions}
    if fits(counts, table, 0.0):
        phases = [data.draw(st.integers(0, int(kind.period))) for kind in sessions]
        assert misses(sessions, phases, table) == 0


@settings(max_examples=examples(100))
@given(sessions=st.lists(kinds, min_size=2, max_size=8), table=tables)
def test_fewer_sessions_leave_no_less_room(sessions, table):
    every = {kind: sessions.count(kind) for kind in sessions}
    fewer = {kind: sessions[1:].count(kind) for kind in sessions[1:]}
    assert slack(fewer, table, 0.1) >= slack(every, table, 0.1)
    assert load(fewer, table, 0.1) <= load(every, table, 0.1)


def test_the_safety_is_kept_free():
    table = (0.0, 4.5)
    assert fits({SessionKind(100.0, 9.0): 1}, table, 0.0)
    assert not fits({SessionKind(100.0, 9.0): 1}, table, 0.1)


def test_what_needs_all_the_time_there_is_does_not_fit():
    assert slack({SessionKind(10.0, 1000.0): 10}, (0.0, 1.0), 0.0) == -math.inf


def test_a_batch_that_is_under_way_counts():
    table = (0.0, 4.0, 4.0)
    assert longest_batch({SessionKind(100.0, 7.0): 2}, table) == 4.0
    assert not fits({SessionKind(100.0, 7.0): 2}, table, 0.0)
    assert fits({SessionKind(100.0, 8.0): 2}, table, 0.0)


# The times that all this starts from.


def times(most: int, *noted: tuple[int, float], often: int = 64) -> StepTimes:
    measured = StepTimes(most)
    for size, seconds in noted:
        for _ in range(often):
            measured.note(size, seconds)
    return measured


def test_nothing_is_known_without_measurements():
    assert StepTimes(4).table is None
    assert StepTimes(4).quickest == 0.0


def test_a_batch_takes_no_longer_than_a_larger_one_nor_than_smaller_ones_in_turn():
    table = times(8, (2, 2.0)).table
    assert table is not None
    assert [round(each / table[1], 6) for each in table[1:]] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_sizes_beyond_those_measured_go_on_as_before_up_to_twice_as_many():
    table = times(8, (1, 1.0), (2, 1.2)).table
    assert table is not None
    assert table[4] < 2 * table[2] * 0.8
    assert table[8] == 4 * table[2]


def test_one_time_that_was_far_too_long_does_not_count_for_all():
    measured = times(1, (1, 1.0))
    measured.note(1, 100.0)
    for _ in range(16):
        measured.note(1, 1.0)
    assert measured.table is not None
    assert measured.table[1] < 20.0


def test_few_times_are_trusted_less():
    (few, many) = times(1, (1, 1.0), often=1).table, times(1, (1, 1.0)).table
    assert few == (0.0, 3.0)
    assert many is not None
    assert many[1] < 1.2
