"""How sequences end, and what a later job for the same id hears."""

from dataclasses import replace

import pytest
from tests.core.scheduling.play import Play, sequences

from torchserve_py.base.causes import CloseReason


def test_an_idle_sequence_closes_when_its_idle_time_is_over():
    play = Play(sequences(max_idle=10.0))
    play.submit("a", "s")
    play.at(4.0).answer("a")
    assert play.at(13.9).tick() == []
    assert play.at(14.0).tick() == ["w1 end s: idle"]
    assert play.next_deadline() is None


def test_the_idle_time_does_not_run_while_a_job_waits_or_runs():
    play = Play(sequences(max_idle=10.0))
    play.submit("a", "s")
    assert play.at(100.0).tick() == []
    play.answer("a")
    assert play.at(109.0).submit("b", "s") == ["w1 <- b"]
    assert play.at(110.0).tick() == []


def test_an_idle_deadline_that_moves_has_one_entry_in_the_heap():
    play = Play(sequences(max_idle=10.0))
    for step in range(50):
        play.at(step / 10).submit(f"job{step}", "s")
        play.answer(f"job{step}")
    assert len(play.scheduler._shared.deadlines) == 1
    assert play.at(10.0).tick() == []
    assert play.next_deadline() == 4.9 + 10.0


def test_a_late_timer_does_not_keep_a_sequence_alive():
    play = Play(sequences(max_idle=10.0))
    play.submit("a", "s")
    play.answer("a")
    assert play.at(11.0).submit("b", "s") == ["w1 end s: idle", "b: sequence_expired"]


def test_a_sequence_ends_with_the_job_that_says_so():
    play = Play(sequences())
    play.submit("a", "s", ends_sequence=True)
    assert play.answer("a") == ["w1 end s: ended"]
    assert play.scheduler.open_sequences == 0
    assert play.submit("b", "s") == ["w1 <- b"]


def test_a_last_job_that_is_cancelled_before_it_ran_ends_nothing():
    play = Play(sequences())
    play.submit("a", "s")
    play.submit("last", "s", ends_sequence=True)
    play.cancel("last")
    assert play.answer("a") == []
    assert play.scheduler.open_sequences == 1


def test_a_last_job_that_is_cancelled_while_it_runs_ends_its_sequence():
    play = Play(sequences())
    play.submit("a", "s", ends_sequence=True)
    play.cancel("a")
    assert play.answer("a") == ["w1 end s: ended"]


def test_the_handler_ends_a_sequence_with_its_answer():
    play = Play(sequences())
    play.submit("a", "s")
    assert play.close_sequence("s") == []
    assert play.answer("a") == ["w1 end s: ended"]


def test_the_handler_ends_an_idle_sequence_at_once():
    play = Play(sequences())
    play.submit("a", "s")
    play.answer("a")
    assert play.close_sequence("s") == ["w1 end s: ended"]
    assert play.close_sequence("s") == []
    assert play.close_sequence("never opened") == []


def test_jobs_that_wait_when_a_sequence_ends_open_a_new_one_in_order():
    play = Play(sequences(queue_size=3))
    play.submit("a", "s", ends_sequence=True)
    play.submit("b", "s")
    play.submit("c", "s", ends_sequence=True)
    play.submit("d", "s")
    assert play.answer("a") == ["w1 end s: ended", "w1 <- b"]
    assert play.answer("b") == ["w1 <- c"]
    assert play.answer("c") == ["w1 end s: ended", "w1 <- d"]
    assert play.answer("d") == []


def test_a_sequence_that_has_lived_its_time_serves_what_waits_and_closes():
    play = Play(sequences(timeout=5.0))
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.at(5.0).tick() == []
    assert play.submit("c", "s") == ["c: sequence_expired"]
    assert play.answer("a") == ["w1 <- b"]
    assert play.at(6.0).answer("b") == ["w1 end s: timeout"]
    assert play.submit("d", "s") == ["d: sequence_expired"]


def test_a_start_marker_waits_for_a_sequence_that_has_lived_its_time_and_opens_it_anew():
    play = Play(sequences(timeout=5.0, queue_size=4))
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.at(6.0).submit("anew", "s", starts_sequence=True) == []
    assert play.submit("continues", "s") == []
    assert play.answer("a") == ["w1 <- b"]
    assert play.answer("b") == ["w1 end s: timeout", "w1 <- anew"]
    assert play.at(10.0).answer("anew") == ["w1 <- continues"]
    assert play.answer("continues") == []
    assert play.at(11.1).tick() == ["w1 end s: timeout"]


def test_a_sequence_that_restarts_when_it_has_expired_waits_for_what_runs():
    play = Play(sequences(timeout=5.0, restart_expired=True))
    play.submit("a", "s")
    assert play.at(6.0).submit("b", "s") == []
    assert play.answer("a") == ["w1 end s: timeout", "w1 <- b"]


def test_jobs_behind_a_start_marker_that_is_withdrawn_hear_that_the_sequence_has_expired():
    play = Play(sequences(timeout=5.0))
    play.submit("a", "s")
    play.at(6.0).submit("anew", "s", starts_sequence=True)
    play.submit("behind", "s")
    assert play.cancel("anew") == ["anew: cancelled"]
    assert play.answer("a") == ["w1 end s: timeout", "behind: sequence_expired"]


def test_what_waits_to_open_a_sequence_anew_counts_as_queued():
    play = Play(sequences(timeout=5.0, queue_size=2))
    play.submit("a", "s")
    play.submit("b", "s")
    play.at(6.0).submit("anew", "s", starts_sequence=True)
    assert play.submit("d", "s", starts_sequence=True) == ["d: sequence_queue_full"]


def test_an_idle_sequence_that_has_lived_its_time_closes():
    play = Play(sequences(timeout=5.0, max_idle=100.0))
    play.submit("a", "s")
    play.at(1.0).answer("a")
    assert play.next_deadline() == 5.0
    assert play.at(5.0).tick() == ["w1 end s: timeout"]


def test_of_two_deadlines_the_first_gives_the_reason():
    play = Play(sequences(timeout=12.0, max_idle=10.0))
    play.submit("a", "s")
    play.at(1.0).answer("a")
    assert play.at(50.0).tick() == ["w1 end s: idle"]


@pytest.mark.parametrize(
    ("reason", "refusal"),
    [
        (CloseReason.idle, "sequence_expired"),
        (CloseReason.timeout, "sequence_expired"),
        (CloseReason.evicted, "sequence_lost"),
        (CloseReason.worker_lost, "sequence_lost"),
    ],
)
def test_a_job_that_continues_a_closed_sequence_is_refused_unless_it_starts_anew(reason, refusal):
    play = Play(sequences())
    play.submit("a", "s")
    play.answer("a")
    assert play.close_sequence("s", reason) == [f"w1 end s: {reason}"]
    assert play.submit("b", "s") == [f"b: {refusal}"]
    assert play.submit("c", "s", starts_sequence=True) == ["w1 <- c"]
    play.answer("c")
    assert play.submit("d", "s") == ["w1 <- d"]


def test_with_restart_expired_a_closed_sequence_begins_anew():
    play = Play(sequences(restart_expired=True))
    play.submit("a", "s")
    play.answer("a")
    play.close_sequence("s", CloseReason.idle)
    assert play.submit("b", "s") == ["w1 <- b"]


def test_a_start_marker_for_an_open_sequence_is_left_to_the_handler():
    play = Play(sequences())
    play.submit("a", "s")
    play.submit("b", "s", starts_sequence=True)
    assert play.answer("a") == ["w1 <- b"]
    assert play.scheduler.open_sequences == 1


def test_jobs_that_wait_when_the_state_is_evicted_are_refused_up_to_one_that_starts_anew():
    play = Play(sequences(queue_size=3))
    play.submit("a", "s")
    play.submit("b", "s")
    play.submit("c", "s", starts_sequence=True)
    play.submit("d", "s")
    play.close_sequence("s", CloseReason.evicted)
    assert play.answer("a") == ["w1 end s: evicted", "b: sequence_lost", "w1 <- c"]
    assert play.answer("c") == ["w1 <- d"]


def test_the_first_reason_to_end_counts():
    play = Play(sequences())
    play.submit("a", "s")
    play.close_sequence("s", CloseReason.ended)
    play.close_sequence("s", CloseReason.evicted)
    assert play.answer("a") == ["w1 end s: ended"]


@pytest.mark.parametrize("by_client", [False, True])
def test_nothing_begins_a_sequence_again_under_a_token_that_it_has_had(by_client):
    play = Play(sequences())
    play.submit("a", "s", step=1, token="t", ends_sequence=by_client)
    play.submit("b", "s", step=2, token="t")
    if not by_client:
        play.close_sequence("s")
    assert play.answer("a") == ["w1 end s: ended", "b: sequence_ended"]
    assert play.submit("c", "s", step=1, token="t", starts_sequence=True) == ["c: step_applied"]
    assert play.submit("d", "s", token="t") == ["d: sequence_ended"]
    assert play.submit("e", "s", step=1, token="u") == ["w1 <- e"], "another token begins another one"
    assert play.submit("f", "s", step=1, token="t", starts_sequence=True) == ["f: step_applied"]


def test_a_sequence_of_which_nothing_was_applied_may_begin_again_under_its_token():
    play = Play(sequences())
    play.submit("a", "s", step=1, token="t")
    play.scheduler.failed("a")
    play.answer("a")
    play.close_sequence("s")
    assert play.submit("b", "s", step=1, token="t") == ["w1 <- b"]


def test_a_token_that_a_start_marker_has_replaced_is_remembered():
    play = Play(sequences())
    for job, token in (("a", "t"), ("b", "u")):
        play.submit(job, "s", step=1, token=token, starts_sequence=True)
        play.answer(job)
    play.close_sequence("s")
    assert play.submit("c", "s", step=1, token="t") == ["c: step_applied"]
    assert play.submit("d", "s", step=1, token="u") == ["d: step_applied"]


def test_a_number_greater_than_1_never_begins_a_sequence():
    play = Play(sequences())
    assert play.submit("a", "s", step=2) == ["a: sequence_unknown"]
    assert play.submit("b", "s", step=2, token="t") == ["b: sequence_unknown"]
    assert play.submit("c", "s", step=1, token="t") == ["w1 <- c"]


def test_where_a_start_is_required_nothing_else_begins_a_sequence():
    policy = sequences(max_idle=10.0, batch_size=4, max_sequences=4)
    play = Play(replace(policy, sequences=replace(policy.sequences, require_start=True)))
    assert play.submit("a", "s") == ["a: sequence_unknown"]
    assert play.submit("b", "s", starts_sequence=True) == ["w1 <- b"]
    play.answer("b")
    assert play.submit("c", "s") == ["w1 <- c"]
    play.answer("c")
    play.at(10.0).tick()
    assert play.submit("d", "s") == ["d: sequence_expired"]
    assert play.submit("e", "t", step=1) == ["w1 <- e"]


def test_where_expired_sequences_may_begin_anew_the_missing_start_is_what_refuses():
    policy = sequences(max_idle=10.0)
    limits = replace(policy.sequences, require_start=True, restart_expired=True)
    play = Play(replace(policy, sequences=limits))
    play.submit("a", "s", starts_sequence=True)
    play.answer("a")
    play.at(10.0).tick()
    assert play.submit("b", "s") == ["b: sequence_unknown"]  # as the rules of stored sequences say
    assert play.submit("c", "s", step=2) == ["c: sequence_expired"]
    assert play.submit("d", "s", starts_sequence=True) == ["w1 <- d"]


def test_what_continues_a_stored_sequence_only_the_store_can_tell():
    policy = sequences()
    play = Play(replace(policy, sequences=replace(policy.sequences, durable=True, require_start=True)))
    assert play.submit("a", "s", step=7, token="t") == ["w1 <- a"]
    play.answer("a")
    assert play.close_sequence("s", CloseReason.ended) == ["w1 end s: ended"]
    assert play.submit("b", "s", step=8, token="t") == ["w1 <- b"]


def test_which_sequences_are_known():
    play = Play(sequences(max_idle=10.0))
    assert not play.scheduler.knows_sequence("s", play.now)
    play.submit("a", "s")
    assert play.scheduler.knows_sequence("s", play.now)
    play.answer("a")
    play.at(10.0).tick()
    assert play.scheduler.knows_sequence("s", play.now)  # it is remembered as expired
    play.submit("b", "t", ends_sequence=True)
    play.answer("b")
    assert not play.scheduler.knows_sequence("t", play.now)
