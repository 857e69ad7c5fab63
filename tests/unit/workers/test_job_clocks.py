"""Of which jobs a worker has said nothing for too long."""

from __future__ import annotations

from torchserve_py.workers.job_clocks import JobClocks
from torchserve_py.workers.parts import Part


def part(job_id: str, *, more: bool) -> Part:
    return Part(job_id, more, 200, "", [], b"", None)


def test_a_silent_job_is_overdue_once() -> None:
    clocks = JobClocks()
    clocks.sent(["a", "b"], 0.0)
    clocks.sent(["c"], 5.0)
    assert clocks.take_overdue(10.0, 10.0) == []
    assert clocks.take_overdue(10.0, 10.1) == ["a", "b"]
    assert clocks.take_overdue(10.0, 10.1) == []
    assert clocks.take_overdue(10.0, 15.1) == ["c"]


def test_every_part_starts_the_time_anew_and_the_last_ends_it() -> None:
    clocks = JobClocks()
    clocks.sent(["streams", "ends", "silent"], 0.0)
    clocks.heard([part("streams", more=True), part("ends", more=False), part("unknown", more=True)], 8.0)
    assert clocks.take_overdue(10.0, 12.0) == ["silent"]
    assert clocks.take_overdue(10.0, 18.1) == ["streams"]


def test_the_time_in_which_nobody_listened_does_not_count() -> None:
    clocks = JobClocks()
    clocks.sent(["a"], 0.0)
    clocks.restart(100.0)
    assert clocks.take_overdue(10.0, 109.0) == []
    assert clocks.take_overdue(10.0, 110.1) == ["a"]


def test_a_job_that_is_overdue_is_stuck_when_nothing_is_heard_of_it_for_as_long_again() -> None:
    clocks = JobClocks()
    clocks.sent(["drops", "goes on", "stuck"], 0.0)
    clocks.take_overdue(10.0, 11.0)
    assert clocks.stuck(10.0, 21.0) == set()
    clocks.heard([part("drops", more=False), part("goes on", more=True)], 20.0)
    assert clocks.stuck(10.0, 21.1) == {"stuck"}
    assert clocks.stuck(10.0, 30.1) == {"stuck", "goes on"}
    clocks.heard([part("stuck", more=False)], 31.0)
    assert clocks.stuck(10.0, 31.0) == {"goes on"}


def test_a_job_that_may_last_is_timed_once_it_is_to_be_dropped() -> None:
    clocks = JobClocks()
    clocks.sent(["a"], 0.0)
    clocks.told_to_drop(["a", "lasts"], 100.0)
    assert clocks.take_overdue(10.0, 105.0) == ["a"]
    assert clocks.take_overdue(10.0, 110.1) == ["lasts"]
    clocks.told_to_drop(["a", "lasts"], 111.0)
    assert clocks.take_overdue(10.0, 200.0) == []
    assert clocks.stuck(10.0, 200.0) == {"a", "lasts"}
