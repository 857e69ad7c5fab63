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
