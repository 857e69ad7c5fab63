"""Workers come and go, and everything ends."""

import pytest
from tests.core.scheduling.play import BATCHES, Play, sequences

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.transitions import IllegalTransition


def test_jobs_wait_for_a_worker_that_is_wanted():
    play = Play(Policy(), workers=0)
    play.set_workers(1)
    assert play.submit("a") == []
    assert play.worker_up("w1") == ["w1 <- a"]


def test_without_any_worker_wanted_jobs_are_refused():
    play = Play(Policy(), workers=0)
    assert play.submit("a") == ["a: no_worker"]


def test_jobs_that_wait_when_the_last_worker_is_no_longer_wanted_are_refused():
    play = Play(Policy())
    play.submit("a")
    play.submit("b")
    assert play.set_workers(0) == []
    assert play.retire("w1") == ["b: no_worker"]
    assert play.submit("c") == ["c: no_worker"]
    assert play.answer("a") == ["w1 released"]


def test_pending_sequences_are_refused_with_their_jobs():
    play = Play(sequences(), workers=0)
    play.set_workers(1)
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.set_workers(0) == ["a: no_worker", "b: no_worker", "- end s: ended"]
    play.set_workers(1)
    assert play.submit("c", "s") == []


def test_a_silent_worker_takes_down_what_it_had_in_flight_but_not_the_queue():
    cause = Cause.response_timeout
    play = Play(BATCHES, workers=2)
    play.submit("a")
    play.submit("b")
    play.submit("c")
    play.submit("d")
    play.submit("e")
    assert play.worker_lost("w1", cause) == [f"a: {cause}", f"b: {cause}"]
    assert play.answer("a") == []
    assert play.answer("c", "d") == []
    assert play.submit("f") == ["w2 <- e f"]


def test_a_cancelled_job_has_no_second_outcome_when_its_worker_is_lost():
    play = Play(Policy())
    play.submit("a")
    play.cancel("a")
    assert play.worker_lost("w1") == []
    assert play.scheduler.is_idle


def test_a_lost_workers_sequences_are_lost():
    play = Play(sequences(batch_size=1), workers=2)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("a2", "s")
    assert play.worker_lost("w1") == ["a: worker_died", "w1 end s: worker_lost", "a2: sequence_lost"]
    assert play.submit("a3", "s") == ["a3: sequence_lost"]
    assert play.answer("b") == []
    assert play.submit("b2", "t") == ["w2 <- b2"]


def test_a_worker_comes_back_under_its_name():
    play = Play(sequences())
    play.submit("a", "s")
    play.worker_lost("w1")
    assert play.worker_up("w1") == []
    assert play.submit("b", "t") == ["w1 <- b"]


def test_a_worker_that_stays_after_all_counts_as_the_latest():
    play = Play(sequences(), workers=3)
    play.scheduler.vacate("w1")
    play.scheduler.reopen("w1", play.now)
    assert [play.submit(name, name) for name in "stu"] == [["w2 <- s"], ["w3 <- t"], ["w1 <- u"]]


def test_a_worker_that_is_to_leave_for_two_reasons_takes_no_sequences_once_one_of_them_is_gone():
    play = Play(sequences(), workers=2)
    play.submit("a", "s")
    play.scheduler.vacate("w1")
    play.scheduler.vacate("w1")
    play.scheduler.reopen("w1", play.now)
    play.worker_lost("w2")
    assert play.scheduler.successor() is None, "s would move to the worker that it is at, and be dropped there"
    play.scheduler.reopen("w1", play.now)
    assert play.scheduler.successor() == "w1"


def test_a_waiting_job_that_starts_anew_survives_the_loss_of_the_worker():
    play = Play(sequences(), workers=2)
    play.submit("a", "s")
    play.submit("b", "s", starts_sequence=True)
    assert play.worker_lost("w1") == ["a: worker_died", "w1 end s: worker_lost", "w2 <- b"]


def test_pending_sequences_are_bound_when_the_capacity_is_shared_anew():
    play = Play(sequences(batch_size=1, max_sequences=2), workers=0)
    play.set_workers(2)
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.worker_up("w1") == ["w1 <- a"]
    play.answer("a")
    assert play.set_workers(1) == ["w1 <- b"]


def test_a_retired_worker_finishes_what_it_has_and_is_released():
    play = Play(BATCHES, workers=2)
    play.submit("a")
    play.submit("b")
    play.submit("c")
    assert play.retire("w1") == []
    assert play.retire("w1") == []
    assert play.answer("a") == []
    assert play.answer("b") == ["w1 released"]
    assert play.submit("d") == ["w2 <- c d"]


def test_an_idle_worker_that_retires_is_released_at_once():
    play = Play(BATCHES)
    assert play.retire("w1") == ["w1 released"]


def test_a_retired_workers_sequences_are_lost_as_soon_as_nothing_of_them_runs():
    play = Play(sequences(batch_size=1), workers=2)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("c", "u")
    play.answer("a")
    play.submit("c2", "u")
    assert play.retire("w1") == ["w1 end s: worker_lost"]
    assert play.submit("c3", "u") == []
    assert play.answer("c") == ["w1 end u: worker_lost", "c2: sequence_lost", "c3: sequence_lost", "w1 released"]


def test_a_retired_worker_may_be_lost():
    play = Play(sequences(), workers=2)
    play.submit("a", "s")
    assert play.retire("w1") == []
    assert play.worker_lost("w1") == ["a: worker_died", "w1 end s: worker_lost"]


def test_while_draining_only_open_sequences_go_on():
    play = Play(sequences(batch_size=1))
    play.submit("a", "s")
    assert play.drain() == []
    assert play.submit("b", "t") == ["b: draining"]
    assert play.submit("describe", "s", unbatched=True) == ["describe: draining"]
    assert play.submit("a2", "s", ends_sequence=True) == []
    assert play.answer("a") == ["w1 <- a2"]
    assert not play.scheduler.is_idle
    assert play.answer("a2") == ["w1 end s: ended"]
    assert play.scheduler.is_idle


def test_a_job_that_was_accepted_before_draining_may_open_its_sequence_after():
    play = Play(sequences())
    play.submit("a", "s", ends_sequence=True)
    play.submit("b", "s")
    play.drain()
    assert play.answer("a") == ["w1 end s: ended", "w1 <- b"]


def test_a_stateless_model_that_drains_refuses_every_new_job():
    play = Play(Policy())
    play.submit("a")
    play.submit("b")
    play.drain()
    assert play.submit("c") == ["c: draining"]
    assert play.answer("a") == ["w1 <- b"]


def test_a_sequence_that_no_worker_has_seen_loses_nothing_with_its_worker():
    play = Play(sequences(batch_size=1, max_sequences=4), workers=2)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("c", "u")
    assert play.worker_lost("w1") == ["a: worker_died", "w1 end s: worker_lost", "w1 end u: worker_lost"]
    assert play.answer("b") == ["w2 <- c"]


def test_closing_ends_everything():
    play = Play(sequences(batch_size=1, max_sequences=2), workers=1)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("describe", unbatched=True)
    assert play.close(Cause.unregistered) == [
        "w1 cancel a",
        "a: unregistered",
        "b: unregistered",
        "describe: unregistered",
        "w1 end s: unregistered",
        "w1 end t: unregistered",
    ]
    assert play.close(Cause.draining) == []
    assert play.submit("c", "s") == ["c: unregistered"]
    assert play.answer("a") == []
    assert play.retire("w1") == ["w1 released"]
    assert play.scheduler.is_idle


def test_a_server_that_goes_away_ends_sequences_as_drained():
    play = Play(sequences(), workers=0)
    play.set_workers(1)
    play.submit("a", "s")
    assert play.close(Cause.draining) == ["a: draining", "- end s: drained"]


def test_what_a_worker_runs_when_the_server_stops_is_interrupted_and_what_waits_is_refused():
    play = Play(Policy())
    play.submit("a")
    play.submit("b")
    told = [effect for effect in play.close(Cause.draining) if "cancel" not in effect]
    assert told == ["a: interrupted", "b: draining"]
    assert play.submit("c") == ["c: draining"]


def test_closing_releases_workers_that_retire():
    play = Play(Policy())
    play.submit("a")
    play.retire("w1")
    assert play.close() == ["w1 cancel a", "a: unregistered", "w1 released"]


@pytest.mark.parametrize(
    "event", [lambda s: s.worker_lost("w9", Cause.worker_died, 0.0), lambda s: s.retire("w9", 0.0)]
)
def test_an_event_of_an_unknown_worker_is_a_defect(event):
    with pytest.raises(ValueError, match="'w9' is not up; these are: w1"):
        event(Play(Policy()).scheduler)


def test_a_worker_cannot_come_up_twice():
    with pytest.raises(ValueError, match="up already"):
        Play(Policy()).worker_up("w1")


def test_a_part_of_a_job_that_was_not_sent_is_a_defect():
    play = Play(BATCHES)
    play.submit("a")
    with pytest.raises(IllegalTransition, match="answer cannot happen in state waiting"):
        play.answer("a")
    with pytest.raises(IllegalTransition, match="stream cannot happen in state waiting"):
        play.part("a")
    assert play.at(1.0).tick() == ["w1 <- a"]


def test_two_live_jobs_cannot_have_one_id():
    play = Play(BATCHES)
    play.submit("a")
    with pytest.raises(ValueError, match="'a' already"):
        play.scheduler.submit(Job("a"), 0.0)


def test_an_idle_worker_rests_and_keeps_its_sequences():
    play = Play(sequences(), workers=1)
    play.submit("a", "s")
    play.answer("a")
    assert play.rest("w1", rests=True) == []
    assert play.submit("b", "s") == []
    assert play.submit("c", "t") == []
    assert play.rest("w1", rests=False) == ["w1 <- b c"]


def test_a_worker_that_rests_may_go():
    play = Play(Policy(), workers=2)
    for worker in ("w1", "w2"):
        play.rest(worker, rests=True)
    assert play.submit("a") == []
    assert play.retire("w1") == ["w1 released"]
    assert play.worker_lost("w2", Cause.worker_died) == []
    assert play.worker_up("w3") == ["w3 <- a"]


def test_a_busy_worker_gets_nothing_more_once_it_is_to_rest():
    play = Play(Policy(batch_size=2, ahead=True))
    assert play.submit("a") == ["w1 <- a"]
    play.submit("b")
    assert play.rest("w1", rests=True) == []
    assert play.answer("a") == []
    assert play.rest("w1", rests=False) == ["w1 <- b"]
