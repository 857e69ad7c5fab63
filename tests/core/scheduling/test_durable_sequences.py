"""Sequences whose states are stored: they outlive their worker, and what it had not answered is sent again."""

from dataclasses import replace

import pytest
from tests.core.scheduling.play import Play, sequences

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.effects import CloseSequence
from torchserve_py.core.scheduling.lost_jobs import MOST_RUNS, OUTCOME_LIMIT
from torchserve_py.core.scheduling.policy import Policy


def durable(**limits: object) -> Policy:
    policy = sequences(**limits)
    return replace(policy, sequences=replace(policy.sequences, durable=True))


def test_what_a_lost_worker_had_goes_on_with_another_in_order():
    play = Play(durable(), workers=2)
    assert play.submit("a", "s") == ["w1 <- a"]
    play.submit("b", "s")
    play.submit("c", "s")
    assert play.worker_lost("w1") == ["w1 end s: suspended", "w2 <- a"]
    assert play.answer("a") == ["w2 <- b"]
    assert play.answer("b") == ["w2 <- c"]


def test_it_waits_for_the_worker_that_replaces_the_lost_one():
    play = Play(durable())
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.worker_lost("w1") == ["w1 end s: suspended"]
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.answer("a") == ["w1 <- b"]


def test_an_idle_sequence_of_a_lost_worker_goes_on_with_its_next_job():
    play = Play(durable(), workers=2)
    play.submit("a", "s")
    play.answer("a")
    assert play.worker_lost("w1") == ["w1 end s: suspended"]
    assert play.submit("b", "s") == ["w2 <- b"]


def test_a_job_that_kills_every_worker_ends():
    play = Play(durable())
    assert play.submit("a", "s") == ["w1 <- a"]
    for _ in range(MOST_RUNS - 1):
        assert play.worker_lost("w1") == ["w1 end s: suspended"]
        assert play.worker_up("w1") == ["w1 <- a"]
    assert not play.asks("a")
    assert play.worker_lost("w1") == ["w1 end s: suspended"]
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.asks("a") == "worker_died"
    assert play.answer("a") == []
    assert play.submit("b", "s") == ["w1 <- b"]


def test_a_job_that_takes_too_long_only_asks_what_has_become_of_it():
    play = Play(durable(), workers=2)
    play.submit("a", "s")
    assert play.worker_lost("w1", Cause.response_timeout) == ["w1 end s: suspended", "w2 <- a"]
    assert play.asks("a") == "response_timeout"
    assert play.worker_lost("w2") == ["w2 end s: suspended"]
    assert play.worker_up("w2") == ["w2 <- a"]
    assert play.asks("a") == "response_timeout"


def test_jobs_that_a_silent_worker_began_before_it_answered_others_did_not_take_too_long():
    play = Play(durable(ahead=True))
    assert play.submit("a", "s") == ["w1 <- a"]
    play.submit("b", "t")
    assert play.submit("c", "u") == ["w1 << b c"]
    play.begins_early("w1")
    assert "w1 begins b c" in play.at(10.0).worker_lost("w1", Cause.response_timeout)
    play.worker_up("w2")
    assert [play.asks(job) for job in "abc"] == ["response_timeout", "", ""]


def test_jobs_that_were_begun_early_take_too_long_once_the_earlier_ones_are_answered():
    play = Play(durable(ahead=True))
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("c", "u")
    play.begins_early("w1")
    assert play.at(1.0).cancel("c") == ["w1 begins b c", "c: cancelled", "w1 cancel c"]
    play.answer("a")
    play.at(10.0).worker_lost("w1", Cause.response_timeout)
    assert play.asks("b") == "response_timeout"


@pytest.mark.parametrize("patience", [None, 1.0, 10 * OUTCOME_LIMIT])
def test_a_job_that_nobody_can_tell_about_in_time_ends_all_the_same(patience):
    play = Play(durable())
    play.submit("a", "s", expires_at=patience)
    play.submit("b", "s")
    play.worker_lost("w1", Cause.response_timeout)
    assert play.at(OUTCOME_LIMIT - 1).tick() == []
    assert play.at(OUTCOME_LIMIT).tick() == ["a: outcome_unknown"]
    assert play.worker_up("w1") == ["w1 <- b"]


def test_a_job_that_asks_ends_in_time_although_the_worker_that_it_asks_dies():
    play = Play(durable())
    play.submit("a", "s")
    play.worker_lost("w1", Cause.response_timeout)
    play.worker_up("w1")
    assert play.at(2 * OUTCOME_LIMIT).worker_lost("w1") == ["a: outcome_unknown", "w1 end s: suspended"]


@pytest.mark.parametrize("cause", [Cause.draining, Cause.unregistered])
def test_what_a_worker_has_had_may_have_been_applied_when_everything_ends(cause):
    play = Play(durable(), workers=2)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("c", "s")
    play.set_workers(1)
    play.worker_lost("w2")
    play.submit("d", "u")
    told = [effect for effect in play.close(cause) if "end" not in effect and "cancel" not in effect]
    assert sorted(told) == ["a: outcome_unknown", "b: outcome_unknown", f"c: {cause}", f"d: {cause}"]


def test_the_worker_hears_since_when_the_server_knows_that_a_sequence_is_active():
    play = Play(durable(max_idle=10.0))
    play.submit("a", "s")
    assert (play.job("a").opens, play.job("a").active_since) == (True, 0.0)
    play.answer("a")
    play.submit("b", "s")
    assert not play.job("b").opens
    play.at(5.0).answer("b")
    play.at(6.0).worker_lost("w1")
    play.at(14.0).worker_up("w1")
    play.submit("c", "s")
    assert (play.job("c").opens, play.job("c").active_since) == (True, 0.0)
    play.answer("c")
    play.worker_lost("w1")
    play.at(24.5).worker_up("w1")
    play.submit("d", "s")
    assert (play.job("d").opens, play.job("d").active_since) == (True, 24.5)


def test_a_job_that_waits_for_a_worker_for_long_keeps_its_sequence_live():
    play = Play(durable(max_idle=2.0))
    play.submit("a", "s")
    play.at(1.0).worker_lost("w1")
    assert play.at(60.0).worker_up("w1") == ["w1 <- a"]
    assert play.job("a").active_since == 0.0


def test_attempts_whose_clients_give_up_keep_their_sequence_live():
    play = Play(durable(max_idle=2.0))
    play.worker_lost("w1")
    for attempt in range(5):
        play.at(3.0 * attempt).submit(f"a{attempt}", "s")
        play.at(3.0 * attempt + 2.0).cancel(f"a{attempt}")
    play.at(15.0).submit("b", "s")
    play.worker_up("w1")
    assert play.job("b").active_since == 0.0


def test_attempts_that_are_refused_without_a_worker_keep_their_sequence_live():
    play = Play(durable(max_idle=2.0))
    play.submit("a", "s")
    play.at(1.0).answer("a")
    play.worker_lost("w1")
    play.set_workers(0)
    for attempt in range(5):
        assert play.at(2.0 + attempt).submit(f"a{attempt}", "s") == [f"a{attempt}: no_worker"]
    play.set_workers(1)
    play.at(7.0).worker_up("w1")
    play.submit("b", "s")
    assert play.job("b").active_since == 0.0
    play.answer("b")
    play.worker_lost("w1")
    play.set_workers(0)
    assert play.at(10.0).submit("late", "s") == ["late: no_worker"]
    play.set_workers(1)
    play.worker_up("w1")
    play.submit("c", "s")
    assert play.job("c").active_since == 10.0


def test_what_has_expired_here_may_have_been_begun_anew_elsewhere():
    play = Play(durable(max_idle=2.0))
    play.submit("a", "s")
    play.answer("a")
    assert play.at(2.0).tick() == ["w1 end s: idle"]
    assert play.submit("b", "s") == ["w1 <- b"]
    assert play.job("b").active_since == 2.0


def test_a_sequence_has_expired_when_it_was_due_however_late_that_is_noticed():
    play = Play(durable(max_idle=2.0))
    play.submit("a", "s")
    play.at(1.0).answer("a")
    (end,) = play.scheduler.tick(7.0)
    assert end == CloseSequence("w1", "s", CloseReason.idle, 3.0)


def test_a_job_whose_answer_has_begun_is_not_sent_again():
    play = Play(durable(continuous=True))
    play.submit("a", "s")
    play.part("a")
    play.submit("b", "s")
    assert play.worker_lost("w1") == ["a: outcome_unknown", "w1 end s: suspended"]
    assert play.worker_up("w1") == ["w1 <- b"]


def test_a_cancelled_job_is_not_sent_again():
    play = Play(durable())
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.cancel("a") == ["a: cancelled", "w1 cancel a"]
    assert play.worker_lost("w1") == ["w1 end s: suspended"]
    assert play.worker_up("w1") == ["w1 <- b"]


def test_a_job_that_waits_to_be_sent_again_can_be_cancelled():
    play = Play(durable())
    play.submit("a", "s")
    play.worker_lost("w1")
    assert play.cancel("a") == ["a: cancelled", "- end s: ended"]
    assert play.worker_up("w1") == []


def test_what_waits_to_be_sent_again_ends_when_no_worker_is_to_come():
    play = Play(durable())
    play.submit("a", "s")
    play.submit("b", "s")
    play.worker_lost("w1")
    assert play.set_workers(0) == ["a: outcome_unknown", "b: no_worker", "- end s: ended"]


def test_a_job_that_was_sent_does_not_expire():
    play = Play(durable())
    play.submit("a", "s", expires_at=1.0)
    play.worker_lost("w1")
    assert play.at(5.0).tick() == []
    assert play.worker_up("w1") == ["w1 <- a"]


def test_a_sequence_that_was_to_end_ends_and_what_waits_begins_anew():
    play = Play(durable(continuous=True))
    play.submit("a", "s")
    play.submit("b", "s")
    play.close_sequence("s")
    assert play.worker_lost("w1") == ["w1 end s: ended"]
    assert play.worker_up("w1") == ["w1 <- a"]


def test_the_sequences_of_a_retiring_worker_move():
    play = Play(durable(), workers=2)
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.retire("w1") == []
    assert play.answer("a") == ["w1 end s: suspended", "w1 released", "w2 <- b"]


@pytest.mark.parametrize("idle", [True, False])
def test_draining_does_not_wait_for_open_sequences(idle):
    play = Play(durable())
    play.submit("a", "s")
    if idle:
        play.answer("a")
    play.drain()
    assert play.scheduler.is_idle is idle
    assert play.submit("b", "s") == ["b: draining"]


def test_a_description_is_not_sent_again():
    play = Play(durable())
    play.submit("a", unbatched=True)
    assert play.worker_lost("w1") == ["a: worker_died"]


def test_what_a_worker_may_not_have_heard_with_a_cancelled_job_it_hears_with_the_next():
    play = Play(durable(max_idle=10.0), workers=2)
    play.submit("a", "s")
    play.answer("a")
    play.at(9.0).worker_lost("w1")
    assert play.submit("b", "s") == ["w2 <- b"]
    play.cancel("b")
    play.submit("c", "s")
    play.answer("b")
    assert (play.job("c").opens, play.job("c").active_since) == (True, 0.0)
    play.answer("c")
    play.submit("d", "s")
    assert not play.job("d").opens


def test_a_sequence_that_rests_leaves_its_worker_and_goes_on_from_the_store():
    policy = durable(max_idle=100.0)
    play = Play(replace(policy, sequences=replace(policy.sequences, max_rest=10.0)))
    play.submit("a", "s")
    play.at(1.0).answer("a")
    assert play.at(10.9).tick() == []
    assert play.at(11.0).tick() == ["w1 end s: suspended"]
    assert play.at(99.0).submit("b", "s") == ["w1 <- b"]
    assert (play.job("b").opens, play.job("b").active_since) == (True, 0.0)


def test_a_sequence_that_rests_makes_room_for_one_more_than_there_may_be():
    play = Play(durable(max_sequences=3, batch_size=1))
    for moment, name in enumerate("stu"):
        play.at(float(moment)).submit(name, name)
        play.answer(name)
    play.at(5.0).submit("again", "s")  # now t has rested longest
    play.answer("again")
    assert play.at(6.0).submit("v", "v") == ["w1 end t: suspended", "w1 <- v"]
    play.answer("v")
    assert play.at(7.0).submit("t2", "t") == ["w1 end u: suspended", "w1 <- t2"]
    assert play.job("t2").opens


def test_where_no_sequence_rests_one_more_is_refused():
    play = Play(durable(max_sequences=2, batch_size=1))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.submit("c", "u") == ["c: sequence_capacity"]
    play.answer("a")
    assert play.submit("d", "u") == ["w1 end s: suspended"]


def test_many_more_sequences_than_there_may_be_all_have_their_turn():
    play = Play(durable(max_sequences=100, batch_size=1, max_idle=10_000.0))
    for number in range(1_000):
        play.at(float(number)).submit(str(number), f"s{number}")
        play.answer(str(number))
    assert len(play.scheduler.jobs) == 0
    assert play.scheduler.open_sequences == 100
