"""More work than the workers can do: what cannot be in time is refused at once, and workers do nothing in vain."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.core.scheduling.impatient_load import ImpatientLoad
from tests.core.scheduling.play import Play, sequences

from torchserve_py.core.scheduling.policy import Policy

ONE_AT_A_TIME = Policy(batch_size=1)
PAIRS = Policy(batch_size=2, max_batch_delay=0.4)


def by(moment: float) -> dict[str, float]:
    """The fields of a job whose client waits until then."""
    return {"expires_at": moment, "answer_by": moment}


def measured(policy: Policy, workers: int = 1, seconds: float = 1.0) -> Play:
    """A scheduler at second 10 that has seen a step, of so many seconds, and whose workers are idle."""
    play = Play(policy, workers)
    sequence_id = "first" if policy.sequences else None
    play.at(10 - seconds - policy.max_batch_delay).submit("first", sequence_id)
    play.at(10 - seconds).tick()
    play.at(10.0).answer("first")
    return play


def test_a_job_that_cannot_be_in_time_is_refused_at_once():
    play = measured(ONE_AT_A_TIME)
    assert play.submit("running") == ["w1 <- running"]
    assert play.submit("next", **by(13.0)) == []
    assert play.submit("late", **by(12.9)) == ["late: overloaded"]
    assert play.submit("patient", **by(14.0)) == []
    assert play.submit("without a limit") == []


def test_what_runs_counts_with_what_is_left_of_it():
    play = measured(ONE_AT_A_TIME)
    play.submit("running")
    assert play.at(10.5).submit("late", **by(11.6)) == ["late: overloaded"]
    assert play.at(10.9).submit("in time", **by(12.3)) == []


def test_steps_that_were_never_measured_are_not_too_slow():
    play = Play(ONE_AT_A_TIME)
    play.submit("running")
    for number in range(50):
        assert play.submit(f"{number}", **by(0.1)) == []


def test_a_limit_to_the_wait_alone_is_compared_with_the_wait():
    play = measured(ONE_AT_A_TIME)
    play.submit("running")
    assert play.submit("a", expires_at=11.1) == []
    assert play.submit("b", expires_at=11.9) == ["b: overloaded"]
    assert play.submit("c", expires_at=12.1) == []


def test_jobs_that_run_together_wait_together():
    play = measured(PAIRS)
    assert play.submit("a") + play.submit("b") == ["w1 <- a b"]
    assert play.submit("c", **by(12.5)) == play.submit("d", **by(12.5)) == []
    assert play.submit("e", **by(12.5)) == ["e: overloaded"]
    assert play.submit("f", **by(13.5)) == []


def test_workers_share_what_waits():
    play = measured(ONE_AT_A_TIME, workers=2)
    play.submit("a")
    play.at(10.5).submit("b")
    assert play.submit("c", **by(12.5)) == play.submit("d", **by(13.0)) == []
    assert play.submit("e", **by(12.9)) == ["e: overloaded"], "its turn comes at 12.0, behind c"
    assert play.submit("f", **by(13.1)) == []


def test_a_worker_that_retires_is_not_counted_on():
    play = measured(ONE_AT_A_TIME, workers=2)
    play.submit("a")
    play.submit("b")
    play.retire("w1")
    assert play.submit("c", **by(12.5)) == []
    assert play.submit("d", **by(12.9)) == ["d: overloaded"]


def test_what_was_sent_ahead_goes_first():
    play = measured(replace(ONE_AT_A_TIME, ahead=True))
    play.submit("running")
    assert play.submit("ahead") == ["w1 << ahead"]
    assert play.submit("late", **by(12.9)) == ["late: overloaded"]


def test_jobs_that_join_wait_until_one_of_those_that_run_has_ended():
    play = measured(Policy(batch_size=2, continuous=True))
    play.submit("a")
    play.submit("b")
    assert play.submit("c", **by(11.9)) == []
    assert play.submit("d", **by(11.9)) == ["d: overloaded"]


def test_what_is_more_urgent_waits_for_less():
    play = measured(ONE_AT_A_TIME)
    for job_id in ("running", "a", "b", "c"):
        play.submit(job_id)
    assert play.submit("late", **by(12.6)) == ["late: overloaded"]
    assert play.submit("urgent", priority=1, **by(12.6)) == []
    assert play.submit("as urgent", priority=1, **by(12.6)) == ["as urgent: overloaded"]


def test_a_job_that_has_not_begun_when_it_must_never_runs():
    play = measured(ONE_AT_A_TIME)
    play.submit("running")
    play.submit("next", **by(12.5))
    assert play.at(11.47).tick() == []
    assert play.at(11.48).tick() == ["next: client_timeout"]
    assert play.at(11.49).answer("running") == []


def test_the_reserve_is_greater_where_steps_vary():
    play = Play(ONE_AT_A_TIME)
    for number in range(16):
        play.submit(f"{number}")
        play.at(play.now + (0.9 if number % 2 else 1.1)).answer(f"{number}")
    start = play.now
    play.submit("running")
    play.submit("next", **by(start + 5.0))
    assert play.next_deadline() == pytest.approx(start + 5.0 - 1.0 - 4 * 0.1)


def test_a_job_that_waits_for_a_fuller_batch_is_sent_when_it_must_begin():
    play = measured(PAIRS, seconds=0.1)
    assert play.submit("a", **by(10.15)) == []
    assert play.next_deadline() == pytest.approx(10.03)
    assert play.at(10.031).tick() == ["w1 <- a"]


def test_a_job_that_must_begin_lets_no_other_wait_for_longer():
    play = Play(sequences(batch_size=1, continuous=True, max_batch_delay=0.0))
    play.submit("running", "a")
    play.at(0.1).submit("waits", "b")
    play.at(0.2).submit("must begin", "c", **by(0.7))
    assert play.at(0.68).tick() == []
    assert list(play.scheduler._source.lane_of(play.job("waits")).items.values()) == [0.1, 0.2]


def test_of_jobs_that_an_idle_worker_would_answer_too_late_one_of_twenty_is_a_trial():
    play = measured(ONE_AT_A_TIME)
    effects = [play.submit(f"{number}", **by(10.5)) for number in range(20)]
    assert effects == [[f"{number}: overloaded"] for number in range(19)] + [["w1 <- 19"]]
    play.at(10.1).answer("19")
    assert play.submit("quick", **by(10.6)) == ["w1 <- quick"], "steps have become quicker"


def test_a_step_is_as_long_as_its_batch_even_if_nobody_waits_for_it():
    play = Play(PAIRS)
    play.submit("a")
    play.submit("b")
    play.cancel("a")
    play.at(0.5).answer("a")
    play.at(1.0).answer("b")
    assert list(play.scheduler._overload.step_seconds) == [1.0]


@pytest.mark.parametrize("fields", [{"unbatched": True}, {"open_ended": True}])
def test_jobs_that_are_no_steps_are_not_measured(fields):
    play = Play(ONE_AT_A_TIME)
    play.submit("long", **fields)
    play.at(9.0).answer("long")
    play.submit("running")
    assert play.submit("a", **by(9.5)) == []


def test_a_cancelled_job_that_has_joined_others_is_not_measured():
    play = Play(Policy(batch_size=1, continuous=True))
    play.submit("a")
    play.at(9.0).cancel("a")
    play.answer("a")
    play.submit("running")
    assert play.submit("b", **by(9.5)) == []


def test_a_step_of_a_sequence_waits_for_those_before_it_in_the_sequence():
    play = measured(sequences(batch_size=2, max_batch_delay=0.0))
    play.submit("a", "s")
    assert play.submit("b", "s", **by(12.5)) == []
    assert play.submit("c", "s", **by(12.9)) == ["c: overloaded"]
    assert play.submit("c again", "s", **by(13.5)) == []
    assert play.at(11.0).answer("a") == ["w1 <- b"]
    assert play.at(12.0).answer("b") == ["w1 <- c again"], "nothing of the sequence was lost"


def test_a_step_waits_for_the_sequences_before_its_own():
    play = measured(sequences(batch_size=1, max_batch_delay=0.0))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.submit("c", "u", **by(12.9)) == ["c: overloaded"]
    assert play.submit("d", "u", **by(13.5)) == []


def test_a_sequence_that_no_worker_has_room_for_waits_as_long_as_it_must():
    play = measured(sequences(batch_size=1, max_batch_delay=0.0, max_sequences=2))
    play.retire("w1")
    assert play.submit("a", "s", **by(10.5)) == []
    assert play.at(10.5).tick() == ["a: client_timeout", "- end s: ended"]


def test_a_job_that_was_sent_before_is_sent_again_however_late_it_is():
    policy = sequences(batch_size=1, max_batch_delay=0.0)
    play = measured(replace(policy, sequences=replace(policy.sequences, durable=True)), workers=2)
    assert play.submit("a", "s", **by(11.5)) == ["w2 <- a"]
    assert play.submit("b", "first") == ["w1 <- b"]
    assert play.at(10.9).worker_lost("w2") == ["w2 end s: suspended"]
    assert play.at(12.0).answer("b") == ["w1 <- a"]


def crowded(policy: Policy = ONE_AT_A_TIME, jobs: str = "abc") -> Play:
    """A scheduler at second 20 with a job that runs and others that wait, since second 10; the next one leaves."""
    play = measured(policy)
    for job_id in ("running", *jobs, "leaves"):
        play.submit(job_id, f"sequence {job_id}" if policy.sequences else None)
    play.at(20.0).cancel("leaves")
    return play


def order(play: Play, first: str = "running") -> list[str]:
    """Answer every job; return them in the order in which they were sent."""
    sent = [first]
    for job_id in sent:
        sent += [effect.removeprefix("w1 <- ") for effect in play.answer(job_id) if " <- " in effect]
    return sent[1:]


def test_the_newest_goes_first_where_a_queue_stands_and_a_client_gives_up():
    play = crowded()
    play.submit("d")
    play.submit("e")
    assert order(play) == ["e", "d", "a", "b", "c"]


def test_where_nobody_gives_up_a_queue_that_stands_is_served_in_the_order_in_which_it_came():
    play = measured(ONE_AT_A_TIME)
    for job_id in ("running", *"abc"):
        play.submit(job_id)
    play.at(20.0).submit("d")
    assert order(play) == ["a", "b", "c", "d"]


def test_a_client_that_gives_up_while_its_job_runs_counts_as_well():
    play = measured(ONE_AT_A_TIME)
    for job_id in ("running", *"ab"):
        play.submit(job_id)
    play.at(20.0).cancel("running")
    play.submit("c")
    assert order(play) == ["c", "a", "b"]


def test_a_client_that_wants_no_more_of_a_stream_has_not_given_up():
    play = measured(ONE_AT_A_TIME)
    for job_id in ("running", *"ab"):
        play.submit(job_id)
    play.part("running")
    play.at(20.0).cancel("running")
    play.submit("c")
    assert order(play) == ["a", "b", "c"]


def test_a_client_that_leaves_a_queue_which_was_empty_a_moment_ago_changes_nothing():
    play = measured(ONE_AT_A_TIME)
    for job_id in ("running", *"ab"):
        play.submit(job_id)
    play.at(13.9).cancel("a")
    play.submit("c")
    assert order(play) == ["b", "c"]


def test_the_oldest_goes_first_again_once_nobody_gives_up():
    play = crowded()
    play.submit("d")
    play.at(23.9).submit("e")
    play.at(24.0).submit("f")
    assert order(play) == ["e", "d", "a", "b", "c", "f"]


def test_the_oldest_goes_first_again_once_the_queue_was_empty():
    play = crowded(jobs="")
    play.submit("a")
    play.cancel("a")
    for job_id in "bcd":
        play.submit(job_id)
    assert order(play) == ["b", "c", "d"]


def test_the_newest_of_those_that_are_equally_urgent_goes_first():
    play = crowded(jobs="ab")
    for job_id, priority in [("c", 0), ("d", 1), ("e", 2), ("f", 1), ("g", 0)]:
        play.submit(job_id, priority=priority)
    assert order(play) == ["f", "d", "e", "g", "c", "a", "b"]


def test_the_newest_waits_for_nobody():
    play = crowded()
    assert play.at(20.5).submit("d", **by(22.6)) == []
    assert play.at(20.9).answer("running") == ["w1 <- d"]


def test_a_batch_waits_no_longer_than_its_oldest_job_may():
    play = crowded(replace(PAIRS, batch_size=3))
    play.submit("d")
    assert play.answer_together("running", "a", "b") == ["w1 <- d c"]


def test_what_was_sent_ahead_and_taken_back_waits_in_its_place():
    play = crowded(replace(ONE_AT_A_TIME, ahead=True), jobs="ab")
    play.submit("c")
    assert play.job("a").state == "ahead"
    play.submit("a description", unbatched=True)
    assert [job.id for job in play.scheduler._source.lane.items] == ["c", "a", "b"]


def test_the_newest_sequence_goes_first_and_its_steps_in_order():
    play = crowded(sequences(batch_size=1, max_batch_delay=0.0), jobs="ab")
    play.submit("c1", "sequence c")
    play.submit("c2", "sequence c")
    play.submit("d", "sequence d")
    sent = order(play)
    assert sent[0] == "d"
    assert sent.index("c1") < sent.index("c2")
    assert sent.index("c1") < sent.index("a") < sent.index("b")


def load(
    policy: Policy, steps: list[Callable[[], float]], rate: float, *, says_so: bool, patience: float = 1.0
) -> ImpatientLoad:
    """Return what became of a hundred seconds of jobs at this rate."""
    load = ImpatientLoad(policy, steps, patience=patience, says_so=says_so, hand_over=0.001)
    load.offer(rate, 100.0)
    return load


RANDOM = Random(2)
#: Policies and times of steps that can do ten jobs a second.
TEN_A_SECOND = {
    "one at a time": (Policy(), [lambda: 0.1]),
    "a batch ahead": (Policy(ahead=True), [lambda: 0.1]),
    "batches": (Policy(batch_size=4, max_batch_delay=0.05), [lambda: 0.4]),
    "four workers": (Policy(), [lambda: 0.4] * 4),
    "steps that vary": (Policy(), [lambda: RANDOM.lognormvariate(-2.6, 0.7)]),
}


@pytest.mark.parametrize("times", [1.1, 3.0, 10.0])
@pytest.mark.parametrize("name", TEN_A_SECOND)
def test_where_clients_say_how_long_they_wait_nearly_all_work_is_for_answers_in_time(name, times):
    policy, steps = TEN_A_SECOND[name]
    done = load(policy, steps, 10 * times, says_so=True)
    assert len(done.in_time) > 0.9 * 10 * 100
    assert done.in_vain < 0.05


@pytest.mark.parametrize("times", [3.0, 10.0])
@pytest.mark.parametrize("name", [name for name in TEN_A_SECOND if name != "a batch ahead"])
def test_where_clients_give_up_unannounced_nearly_all_work_is_for_answers_in_time_as_well(name, times):
    policy, steps = TEN_A_SECOND[name]
    done = load(policy, steps, 10 * times, says_so=False)
    assert len(done.in_time) > 0.9 * 10 * 100
    assert done.in_vain < 0.05


def test_jobs_that_are_refused_are_refused_at_once():
    done = load(Policy(), [lambda: 0.1], 30, says_so=True)
    assert len(done.refused) > 1500
    assert {(cause.value, seconds) for cause, seconds in done.refused.values()} == {("overloaded", 0.0)}
