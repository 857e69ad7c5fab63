"""Steps with deadlines: their order, their batches, what becomes of late ones, and which sessions are accepted."""

from typing import Any

from tests.core.scheduling.play import Play, sequences

from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.timing import Timing

ONE_AT_A_TIME = Policy(batch_size=1, queue_size=10)


def due(within: float, **fields: Any) -> Timing:
    return Timing(within, **fields)


def guaranteed(play: Play) -> int:
    return play.scheduler.punctuality.reservations.count(play.now)


def measured(play: Play, seconds: float = 1.0, sizes: tuple[int, ...] = (1,)) -> Play:
    """Let batches of these sizes have taken so long each, often enough to be trusted."""
    for _ in range(32):
        for size in sizes:
            play.scheduler._times.note(size, seconds)
    return play


def test_the_earliest_deadline_goes_first_and_what_has_none_last():
    play = Play(ONE_AT_A_TIME)
    play.submit("running")
    play.submit("none")
    play.submit("later", timing=due(9))
    play.submit("soon", timing=due(5))
    assert play.answer("running", "soon", "later") == ["w1 <- soon", "w1 <- later", "w1 <- none"]


def test_a_priority_counts_more_than_a_deadline():
    play = Play(ONE_AT_A_TIME)
    play.submit("running")
    play.submit("soon", timing=due(5))
    play.submit("urgent", priority=1)
    play.submit("urgent and due", priority=1, timing=due(9))
    assert play.answer("running", "urgent and due", "urgent") == [
        "w1 <- urgent and due",
        "w1 <- urgent",
        "w1 <- soon",
    ]


def test_deadlines_count_across_sequences_whatever_their_turn():
    play = Play(sequences(batch_size=1, max_batch_delay=0.0))
    play.submit("a1", "a", timing=due(9))
    play.submit("b1", "b", timing=due(9))
    play.submit("c1", "c", timing=due(2))
    assert play.answer("a1") == ["w1 <- c1"]


def test_what_has_no_deadline_is_not_kept_waiting_for_ever():
    play = Play(ONE_AT_A_TIME)
    play.submit("running")
    play.submit("patient")
    answered, taken = "running", []
    for number in range(10):
        play.submit(f"due{number}", timing=due(60))
        (effect,) = play.answer(answered)
        answered = effect.removeprefix("w1 <- ")
        taken.append(answered)
    assert "patient" in taken


def test_a_step_that_cannot_be_in_time_is_dropped_as_soon_as_that_is_known():
    play = measured(Play(ONE_AT_A_TIME), 2.0)
    play.submit("running")
    play.submit("frame", timing=due(5, drops=True))
    assert play.next_deadline() == 3.0
    assert play.at(3.0).tick() == ["frame: deadline_missed"]


def test_a_dropped_step_does_not_end_its_sequence():
    play = measured(Play(sequences(batch_size=1, max_batch_delay=0.0)), 2.0)
    play.submit("a1", "a")
    play.submit("a2", "a", timing=due(5, drops=True))
    play.submit("a3", "a", timing=due(9, drops=True))
    assert play.at(3.0).tick() == ["a2: deadline_missed"]
    assert play.answer("a1") == ["w1 <- a3"]


def test_a_late_step_that_is_to_run_lets_those_go_first_that_can_be_in_time():
    play = measured(Play(ONE_AT_A_TIME), 2.0)
    play.submit("running")
    play.submit("late", timing=due(3))
    play.at(2.0).submit("in time", timing=due(10))
    assert play.answer("running", "in time") == ["w1 <- in time", "w1 <- late"]


def test_steps_that_never_can_be_in_time_are_tried_now_and_then():
    play = measured(Play(ONE_AT_A_TIME), 2.0)
    outcomes = [play.submit(f"hopeless{number}", timing=due(1, drops=True)) for number in range(20)]
    assert outcomes[:19] == [[f"hopeless{number}: deadline_missed"] for number in range(19)]
    assert outcomes[19] == ["w1 <- hopeless19"]


def test_a_batch_is_no_larger_than_the_earliest_deadline_allows():
    play = Play(Policy(batch_size=4))
    measured(play, 1.0, (1,))
    measured(play, 2.0, (2,))
    measured(play, 4.0, (4,))
    play.submit("running")
    play.submit("tight", timing=due(2.5))
    for other in "abc":
        play.submit(other, timing=due(60))
    assert play.answer("running") == ["w1 <- tight a"]


def test_a_step_that_is_late_anyway_makes_no_batch_smaller():
    play = Play(Policy(batch_size=2))
    measured(play, 1.0, (1,))
    measured(play, 3.0, (2,))
    play.submit("running")
    play.submit("late", timing=due(1.1))
    play.submit("other", timing=due(60))
    assert play.at(0.5).answer("running") == ["w1 <- other late"]


def test_a_batch_with_a_deadline_does_not_wait_for_others():
    play = Play(Policy(batch_size=2, max_batch_delay=5.0))
    assert play.submit("plain") == []
    assert play.submit("frame", timing=due(60)) == ["w1 <- frame plain"]


def test_a_far_deadline_lets_a_batch_wait_its_delay_and_no_shorter():
    play = Play(Policy(batch_size=3, max_batch_delay=1.0))
    measured(play, 0.1, (3,))
    assert play.submit("frame", timing=due(1.5)) == []
    assert play.at(play.now + 0.5).submit("plain") == []  # the batch is still sent soon enough
    assert play.at(play.now + 0.5).tick() == ["w1 <- frame plain"]


def test_nothing_is_sent_ahead_of_a_deadline():
    play = Play(Policy(batch_size=1, ahead=True, queue_size=10))
    play.submit("running")
    assert play.submit("ahead") == ["w1 << ahead"]
    assert play.submit("frame", timing=due(60)) == []
    assert play.answer("running") == ["w1 <- frame", "w1 << ahead"]


def test_a_step_of_two_limits_ends_for_the_one_that_comes_first():
    play = Play(ONE_AT_A_TIME)
    play.submit("running")
    play.submit("impatient", expires_at=1.0, timing=due(5, drops=True))
    play.submit("patient", expires_at=9.0, timing=due(5, drops=True))
    assert play.at(1.0).tick() == ["impatient: client_timeout"]
    assert play.at(5.0).tick() == ["patient: deadline_missed"]


# Sessions with a guarantee.


def session(period: float = 10.0, **fields: Any) -> Timing:
    return Timing(period, period=period, **fields)


def full(workers: int = 1) -> Play:
    """A server on which each worker can promise two sessions of 10 s. A step takes 2.2 s."""
    play = Play(sequences(batch_size=1, max_batch_delay=0.0), workers)
    measured(play, 2.2)
    return play


def test_a_session_is_refused_that_would_let_another_be_late():
    play = full()
    assert play.submit("a1", "a", timing=session()) == ["w1 <- a1"]
    assert play.submit("b1", "b", timing=session()) == []
    assert play.submit("c1", "c", timing=session()) == ["c1: deadline_capacity"]


def test_a_session_that_degrades_runs_without_a_guarantee_and_behind_the_others():
    play = full()
    play.submit("a1", "a", timing=session())
    play.submit("b1", "b", timing=session())
    play.submit("c1", "c", timing=session(degrades=True))
    assert play.job("c1").timing.is_degraded
    assert play.answer("a1") == ["w1 <- b1"]
    assert not play.job("b1").timing.is_degraded


def test_a_session_goes_to_the_worker_that_has_room_for_it():
    play = full(workers=2)
    for name in "abc":  # the third shares a worker
        play.submit(f"{name}1", name, timing=session())
    play.submit("x1", "x")
    assert play.submit("d1", "d", timing=session()) == []
    assert play.submit("e1", "e", timing=session()) == ["e1: deadline_capacity"]
    assert {play.scheduler.sequence(name).lane.worker_id for name in "abcd"} == {"w1", "w2"}


def test_the_end_of_a_session_makes_room():
    play = full()
    play.submit("a1", "a", timing=session(), ends_sequence=True)
    play.submit("b1", "b", timing=session())
    play.answer("a1")
    play.submit("c1", "c", timing=session())
    assert guaranteed(play) == 2


def test_a_guarantee_covers_one_step_in_a_period_and_not_the_ones_between():
    play = full()
    play.submit("a1", "a", timing=session())
    play.at(2.0).answer("a1")
    play.submit("a2", "a", timing=session())
    assert not play.job("a2").timing.is_guaranteed
    play.at(8.0).answer("a2")
    play.submit("a3", "a", timing=session())
    assert play.job("a3").timing.is_guaranteed


def test_a_step_with_a_guarantee_goes_before_all_others_even_if_their_deadlines_are_earlier():
    play = full()
    play.submit("x1", "x")
    play.submit("y1", "y", timing=due(5))
    play.submit("a1", "a", timing=session())
    assert play.answer("x1") == ["w1 <- a1"]


def test_a_later_step_does_not_fail_for_lack_of_room_when_its_session_moves():
    play = Play(Policy(sequences=SequencePolicy(10.0, max_sequences=10, durable=True)))
    measured(play, 2.2)
    play.submit("a1", "a", timing=session())
    play.submit("b1", "b", timing=session())
    play.submit("c7", "c", step=7, timing=session())
    assert play.job("c7").timing.is_degraded


def test_without_measurements_one_session_at_a_time_is_tried():
    play = Play(sequences(batch_size=1, max_batch_delay=0.0))
    assert play.submit("a1", "a", timing=session()) == ["w1 <- a1"]
    assert play.submit("b1", "b", timing=session()) == ["b1: deadline_capacity"]
    play.at(1.0).answer("a1")
    play.submit("b1", "b", timing=session(period=20.0))
    assert guaranteed(play) == 2


def test_the_batches_of_other_work_are_so_short_that_no_guarantee_is_broken():
    play = Play(sequences(batch_size=4, max_batch_delay=0.0))
    for size in (1, 2, 3, 4):
        measured(play, float(size), (size,))
    play.submit("a1", "a", timing=session(period=4.0))
    play.answer("a1")
    play.submit("x1", "x")
    for name in "stu":
        play.submit(f"{name}1", name)
    assert play.answer("x1") == ["w1 <- s1 t1"]


def test_where_jobs_join_running_ones_a_period_is_a_deadline_and_nothing_is_promised():
    play = measured(Play(sequences(batch_size=1, continuous=True)), 30.0)
    assert play.submit("a1", "a", timing=session()) == ["w1 <- a1"]
    assert play.submit("b1", "b", timing=session()) == []
    assert play.answer("a1") == ["w1 <- b1"]
    assert play.job("b1").timing.is_degraded


def test_a_step_that_joins_a_running_one_does_not_wait_behind_a_deadline():
    play = Play(sequences(batch_size=1, continuous=True))
    play.submit("a1", "a")
    play.submit("a2", "a")
    play.submit("b1", "b", timing=due(5))
    assert play.part("a1") == ["w1 <- a2"]


def test_a_step_with_a_deadline_does_not_wait_where_the_one_before_it_did():
    play = Play(sequences(batch_size=2, max_batch_delay=1.0), workers=1)
    play.submit("a1", "a")
    play.submit("b1", "b")
    play.answer("a1")
    play.at(1.0).tick()
    play.answer("b1")
    assert play.submit("a2", "a") == []
    assert play.submit("a3", "a", timing=due(0.5)) == []
    assert play.cancel("a2") == ["a2: cancelled", "w1 <- a3"]


def test_a_first_session_that_cannot_be_in_time_does_not_keep_others_out():
    play = Play(sequences(batch_size=1, max_batch_delay=0.0))
    for step in range(1, 18):
        play.submit(f"a{step}", "a", timing=due(0.1, period=0.1))
        play.at(float(step)).answer(f"a{step}")
    play.submit("a18", "a", timing=due(0.1, period=0.1))
    assert play.job("a18").timing.is_degraded
    play.submit("b1", "b", timing=due(9.0, period=9.0))
    assert play.job("b1").timing.is_guaranteed


def test_a_session_that_is_silent_for_long_gives_its_guarantee_back():
    play = measured(Play(sequences(max_idle=1000.0, batch_size=1, max_batch_delay=0.0)), 2.2)
    play.submit("a1", "a", timing=session())
    play.submit("b1", "b", timing=session())
    play.answer("a1")
    play.answer("b1")
    assert play.submit("c1", "c", timing=session()) == ["c1: deadline_capacity"]
    play.at(200.0).submit("c1", "c", timing=session())
    assert play.job("c1").timing.is_guaranteed
    play.submit("d1", "d", timing=session())
    play.submit("a2", "a", timing=session())
    assert play.job("a2").timing.is_degraded


def test_a_degraded_session_is_guaranteed_once_there_is_room():
    play = full()
    play.submit("a1", "a", timing=session(), ends_sequence=True)
    play.submit("b1", "b", timing=session())
    play.submit("c1", "c", timing=session(degrades=True))
    assert play.job("c1").timing.is_degraded
    play.answer("a1")
    play.answer("b1")
    play.answer("c1")
    play.at(9.0).submit("c2", "c", timing=session(degrades=True))
    assert not play.job("c2").timing.is_degraded
