"""Jobs whose clients have given them a priority: 1 goes first, then 2 …, and those without one last."""

from collections import OrderedDict
from typing import Any

from tests.core.scheduling.play import CONTINUOUS, Play, sequences

from torchserve_py.core.scheduling.fifo import JobLane
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy

ONE_AT_A_TIME = Policy(batch_size=1, queue_size=10)


def busy(policy: Policy = ONE_AT_A_TIME) -> Play:
    play = Play(policy)
    for number in range(policy.batch_size):
        play.submit(f"running{number}")
    return play


def test_a_lower_number_goes_first():
    play = busy()
    for job_id, priority in [("c", 3), ("a", 1), ("b", 2)]:
        play.submit(job_id, priority=priority)
    assert play.answer("running0", "a", "b") == ["w1 <- a", "w1 <- b", "w1 <- c"]


def test_those_of_one_priority_are_served_in_the_order_in_which_they_came():
    play = busy()
    for job_id in "abc":
        play.submit(job_id, priority=7)
    assert play.answer("running0", "a", "b") == ["w1 <- a", "w1 <- b", "w1 <- c"]


def test_those_without_a_priority_come_last_whether_they_came_before_or_after():
    play = busy()
    play.submit("before")
    play.submit("urgent", priority=2**64 - 1)
    play.submit("after")
    assert play.answer("running0", "urgent", "before") == ["w1 <- urgent", "w1 <- before", "w1 <- after"]


def test_a_batch_holds_the_most_urgent():
    play = busy(Policy(batch_size=2, max_batch_delay=1.0))
    for job_id, priority in [("a", 0), ("b", 0), ("c", 2), ("d", 1)]:
        play.submit(job_id, priority=priority)
    assert play.answer_together("running0", "running1") == ["w1 <- d c"]
    assert play.answer_together("d", "c") == ["w1 <- a b"]


def test_a_batch_is_due_when_its_oldest_job_has_waited_long_enough_whatever_its_priority():
    play = Play(Policy(batch_size=3, max_batch_delay=1.0))
    play.submit("old")
    assert play.at(0.5).submit("urgent", priority=1) == []
    assert play.at(1.0).tick() == ["w1 <- urgent old"]


def test_joining_jobs_too():
    play = busy(CONTINUOUS)
    play.submit("late")
    play.submit("urgent", priority=1)
    assert play.answer("running0") == ["w1 <- urgent"]


def test_one_that_is_cancelled_or_expires_is_never_sent():
    play = busy()
    play.submit("cancelled", priority=1)
    play.submit("expired", priority=2, expires_at=5.0)
    play.submit("served", priority=3)
    assert play.cancel("cancelled") == ["cancelled: cancelled"]
    assert play.at(5.0).tick() == ["expired: client_timeout"]
    assert play.answer("running0") == ["w1 <- served"]


def test_a_full_queue_makes_room_for_what_is_more_urgent():
    play = busy(Policy(batch_size=1, queue_size=3))
    for job_id, priority in [("a", 0), ("b", 2), ("c", 0)]:
        play.submit(job_id, priority=priority)
    assert play.submit("d", priority=3) == ["c: queue_full"], "of those that are least urgent, the one that came last"
    assert play.submit("e", priority=1) == ["a: queue_full"]
    assert play.submit("f", priority=2) == ["d: queue_full"]
    assert play.submit("g", priority=2) == ["g: queue_full"]
    assert play.submit("h") == ["h: queue_full"]
    assert play.answer("running0", "e", "b") == ["w1 <- e", "w1 <- b", "w1 <- f"]


def test_a_queue_without_priorities_makes_room_for_the_first_job_with_one():
    play = busy(Policy(batch_size=1, queue_size=2))
    play.submit("a")
    play.submit("b")
    assert play.submit("c", priority=1) == ["b: queue_full"]
    assert play.answer("running0", "c") == ["w1 <- c", "w1 <- a"]


def test_room_is_made_behind_those_that_have_left():
    play = busy(Policy(batch_size=1, queue_size=2))
    play.submit("a", priority=3)
    play.submit("b", priority=2)
    play.cancel("a")
    play.submit("c", priority=2)
    assert play.submit("d", priority=1) == ["c: queue_full"]


def test_what_was_sent_ahead_makes_room_as_well():
    play = busy(Policy(batch_size=1, queue_size=1, ahead=True))
    assert play.submit("a") == ["w1 << a"]
    assert play.submit("b", priority=1) == ["a: queue_full"]


def test_the_steps_of_sequences_that_were_sent_ahead_stay_whatever_the_priority_of_others():
    play = Play(sequences(batch_size=1, max_batch_delay=0.0, max_sequences=3, ahead=True))
    play.submit("running", "s")
    assert play.submit("a", "t") == ["w1 << a"]
    assert play.submit("urgent", "u", priority=1) == []
    assert play.answer("running") == ["w1 begins a", "w1 << urgent"]


def test_urgent_jobs_do_not_keep_others_waiting_for_ever():
    play = busy(Policy(batch_size=1, queue_size=10))
    play.submit("patient")
    running, sent = "running0", []
    for number in range(20):  # there is always an urgent one
        play.submit(f"urgent{number}", priority=1)
        (effect,) = play.answer(running)
        running = effect.removeprefix("w1 <- ")
        sent.append(running)
    assert "patient" in sent[:8]
    assert [each for each in sent if each != "patient"] == [f"urgent{number}" for number in range(19)]


def test_with_a_job_ticket_there_is_no_room_to_make():
    play = busy(Policy(batch_size=1, job_ticket=True))
    assert play.submit("a", priority=1) == ["a: queue_full"]


def test_once_nothing_waits_it_is_as_if_there_had_been_no_priority():
    play = busy()
    play.submit("urgent", priority=1)
    play.answer("running0", "urgent")
    for job_id in "abc":
        play.submit(job_id)
    assert not play.scheduler._source.lane.order.decides
    assert play.answer("a", "b") == ["w1 <- b", "w1 <- c"]


def test_what_has_left_is_not_held():
    """Jobs hold the bodies of requests."""
    play = busy(Policy(queue_size=1000))
    play.submit("first", priority=9)
    for number in range(500):
        play.submit(f"gone{number}", priority=1)
        play.cancel(f"gone{number}")
        assert len(play.scheduler._source.lane.order._places) <= 2 + 64
    play.cancel("first")
    assert not play.scheduler._source.lane.order.decides


def test_new_sequences_that_wait_for_a_worker_are_bound_by_the_priority_of_their_first_jobs():
    play = Play(sequences(batch_size=1, max_sequences=3), workers=0)
    play.set_workers(1)
    for job_id, priority in [("a", 0), ("b", 2), ("c", 1)]:
        play.submit(job_id, f"sequence {job_id}", priority=priority)
    assert play.worker_up("w1") == ["w1 <- c"]
    assert play.answer("c", "b") == ["w1 <- b", "w1 <- a"]


def test_jobs_of_a_sequence_keep_their_order():
    play = Play(sequences(batch_size=1))
    play.submit("first", "s")
    play.submit("second", "s")
    play.submit("third", "s", priority=1)
    assert play.answer("first", "second") == ["w1 <- second", "w1 <- third"]


class _Noting:
    """An order that never decides, and notes what was taken."""

    decides, is_settled = False, True

    def __init__(self) -> None:
        self.taken: list[Job] = []

    def add(self, item: Job, waiting: OrderedDict[Job, float], *, newest_first: bool) -> None: ...

    def took(self, item: Job) -> None:
        self.taken.append(item)


def test_an_order_that_does_not_decide_is_told_what_is_taken() -> None:
    order: Any = _Noting()
    lane = JobLane(10, 0.0, lambda job_of, by_priority: order)
    jobs = [Job("a"), Job("b")]
    for job in jobs:
        lane.put(job, 0.0)
    assert lane.take(5) == order.taken == jobs
