"""Sequences x WhenIdle: batches of at most one job per sequence, each sequence with the worker that holds its state."""

import pytest
from tests.core.scheduling.play import Play, sequences

from torchserve_py.core.scheduling.job import Job


def test_a_lone_sequence_never_waits_for_others():
    play = Play(sequences(batch_size=8, max_batch_delay=100.0))
    assert play.submit("a", "s") == ["w1 <- a"]
    assert play.answer("a") == []
    assert play.submit("b", "s") == ["w1 <- b"]


def test_a_batch_waits_for_the_other_sequences_of_its_worker_until_all_are_ready():
    play = Play(sequences(batch_size=8, max_batch_delay=1.0))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.answer("a") == []
    assert play.submit("c", "s") == ["w1 <- b c"]
    assert play.answer("b", "c") == []
    assert play.submit("d", "t") == []
    assert play.submit("e", "s") == ["w1 <- d e"]


def test_a_batch_waits_for_the_others_no_longer_than_the_delay():
    play = Play(sequences(batch_size=8, max_batch_delay=1.0))
    play.submit("a", "s")
    play.answer("a")
    play.submit("b", "t")
    play.at(1.0).tick()
    play.answer("b")
    assert play.at(2.0).submit("c", "s") == []
    assert play.at(2.9).tick() == []
    assert play.at(3.0).tick() == ["w1 <- c"]


def test_a_batch_waits_a_moment_for_the_sequences_of_the_batch_before():
    play = Play(sequences(batch_size=8, max_batch_delay=1.0))
    for name in "stuv":
        play.submit(f"{name}1", name)
    assert play.at(5.0).answer("s1") == [], "the others have waited long enough, and s is asked to come along"
    assert play.at(5.05).submit("s2", "s") == ["w1 <- t1 u1 v1 s2"]
    assert play.at(9.0).answer("t1", "u1", "v1", "s2") == []
    assert play.at(9.01).submit("t2", "t") == play.submit("u2", "u") == play.submit("v2", "v") == []
    assert play.submit("s3", "s") == ["w1 <- t2 u2 v2 s3"], "they stay together"


def test_a_batch_waits_for_the_batch_before_a_tenth_of_its_time_at_most_and_no_longer_than_the_delay():
    play = Play(sequences(batch_size=8, max_batch_delay=1.0, max_idle=1000.0))
    play.submit("s1", "s")
    play.submit("t1", "t")
    assert play.at(5.0).answer("s1") == []
    assert play.at(5.49).tick() == []
    assert play.at(5.5).tick() == ["w1 <- t1"]
    assert play.at(50.0).submit("s2", "s") == []
    assert play.answer("t1") == []
    assert play.at(50.99).tick() == []
    assert play.at(51.0).tick() == ["w1 <- s2"]


def test_after_a_short_batch_nothing_is_waited_for():
    play = Play(sequences(batch_size=8, max_batch_delay=0.01))
    for name in "stu":
        play.submit(f"{name}1", name)
    play.at(0.015).answer("s1")
    assert play.at(0.034).answer("t1", "u1") == []
    play.submit("s2", "s")
    play.submit("t2", "t")
    assert play.at(0.044).submit("u2", "u") == ["w1 <- s2 t2 u2"]
    play.submit("v1", "v")
    play.submit("w1", "w")
    assert play.at(0.060).answer("s2", "t2", "u2") == ["w1 <- v1 w1"], "the batch took 16 ms"


def test_the_delay_counts_from_when_the_sequence_became_ready():
    play = Play(sequences(batch_size=2, max_batch_delay=1.0))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.at(1.0).submit("a2", "s") == []
    assert play.at(4.0).answer("a") == ["w1 <- b a2"]
    assert play.submit("b2", "t") == play.submit("a3", "s") == []
    assert play.at(5.0).answer("b") == []
    assert play.at(5.5).answer("a2") == ["w1 <- b2 a3"]


def test_a_batch_no_longer_waits_for_a_sequence_that_has_closed():
    play = Play(sequences(batch_size=2, max_batch_delay=100.0, max_idle=10.0))
    play.submit("a", "s")
    play.submit("b", "t")
    play.answer("a")
    play.at(5.0).submit("c", "s")
    play.at(6.0).answer("b", "c")
    assert play.at(15.0).submit("d", "s") == []
    assert play.at(16.0).tick() == ["w1 end t: idle", "w1 <- d"]


def test_a_sequence_has_one_job_in_flight_and_keeps_its_order():
    play = Play(sequences(batch_size=4, queue_size=3))
    assert play.submit("a", "s") == ["w1 <- a"]
    assert play.submit("b", "s") + play.submit("c", "s") + play.submit("d", "s") == []
    assert play.answer("a") == ["w1 <- b"]
    assert play.answer("b") == ["w1 <- c"]
    assert play.part("c") == []
    assert play.answer("c") == ["w1 <- d"]


def test_the_queue_of_a_sequence_does_not_count_what_is_in_flight():
    play = Play(sequences(queue_size=1))
    play.submit("a", "s")
    assert play.submit("b", "s") == []
    assert play.submit("c", "s") == ["c: sequence_queue_full"]
    play.submit("other", "t")
    assert play.answer("a") == ["w1 <- other b"]
    assert play.submit("d", "s") == []


def test_ready_sequences_are_served_in_the_order_in_which_they_became_ready():
    play = Play(sequences(batch_size=2, max_batch_delay=0.0))
    play.submit("a1", "a")
    for sequence in "bcde":
        play.submit(f"{sequence}1", sequence)
    play.submit("a2", "a")
    assert play.answer("a1") == ["w1 <- b1 c1"]
    play.submit("b2", "b")
    assert play.answer("b1", "c1") == ["w1 <- d1 e1"]
    assert play.answer("d1", "e1") == ["w1 <- a2 b2"]


def test_a_new_sequence_goes_to_the_worker_with_the_most_free_slots_and_stays():
    play = Play(sequences(max_batch_delay=0.0), workers=2)
    assert play.submit("a", "s") + play.submit("b", "t") + play.submit("c", "u") == ["w1 <- a", "w2 <- b"]
    play.answer("a", "b")
    play.answer("c")
    assert play.submit("t2", "t") + play.submit("s2", "s") == ["w2 <- t2", "w1 <- s2"]
    assert play.submit("v1", "v") == []
    assert play.answer("t2") == ["w2 <- v1"]


def test_beyond_its_capacity_a_model_refuses_new_sequences_at_once():
    play = Play(sequences(batch_size=1, max_sequences=2))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.scheduler.remaining_capacity == 0
    assert play.submit("c", "u") == ["c: sequence_capacity"]
    play.answer("a")
    assert play.submit("d", "s") == []


def test_the_capacity_is_never_less_than_what_the_workers_batches_hold():
    play = Play(sequences(batch_size=3, max_sequences=1), workers=2)
    for number in range(6):
        assert f"{number}: sequence_capacity" not in play.submit(str(number), f"s{number}")
    assert play.submit("6", "s6") == ["6: sequence_capacity"]
    play.set_workers(3)
    assert play.submit("7", "s7") == []


def test_sequences_without_a_slot_are_pending_and_bound_in_order():
    play = Play(sequences(batch_size=1, max_sequences=4), workers=0)
    play.set_workers(2)
    for name in "abcd":
        assert play.submit(name, name.upper()) == []
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.answer("a") == ["w1 <- b"]
    assert play.close_sequence("A") == ["w1 end A: ended"]
    assert play.answer("b") == ["w1 <- c"]
    assert play.worker_up("w2") == ["w2 <- d"]


def test_a_pending_sequence_whose_only_job_is_cancelled_closes_without_a_worker():
    play = Play(sequences(), workers=0)
    play.set_workers(1)
    play.submit("a", "s")
    assert play.cancel("a") == ["a: cancelled", "- end s: ended"]
    assert play.scheduler.is_idle


def test_a_ready_sequence_whose_only_job_is_cancelled_rests():
    play = Play(sequences(batch_size=1))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.cancel("b") == ["b: cancelled"]
    assert play.answer("a") == []
    assert play.at(10.0).tick() == ["w1 end s: idle", "w1 end t: idle"]


def test_a_cancelled_running_job_holds_its_sequence_until_the_worker_lets_go():
    play = Play(sequences())
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.cancel("a") == ["a: cancelled", "w1 cancel a"]
    assert play.answer("a") == ["w1 <- b"]


def test_an_expired_job_frees_its_place_in_its_sequence():
    play = Play(sequences(queue_size=1))
    play.submit("a", "s")
    play.submit("b", "s", expires_at=3.0)
    assert play.at(3.0).submit("c", "s") == ["b: client_timeout"]
    assert play.answer("a") == ["w1 <- c"]


def test_a_describe_belongs_to_no_sequence_and_travels_alone():
    play = Play(sequences(batch_size=2))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.submit("describe", unbatched=True) == []
    assert play.scheduler.open_sequences == 2
    assert play.answer("a") == ["w1 <- describe"]
    assert play.answer("describe") == []
    assert play.at(1.0).tick() == ["w1 <- b"]


def test_a_job_without_a_sequence_is_a_defect_of_the_caller():
    with pytest.raises(ValueError, match="no sequence_id"):
        Play(sequences()).scheduler.submit(Job("a"), 0.0)


def test_a_job_ticket_is_ignored():
    from dataclasses import replace

    play = Play(replace(sequences(batch_size=1), job_ticket=True))
    assert play.submit("a", "s") == ["w1 <- a"]
    assert play.submit("b", "t") == []
    assert play.answer("a") == ["w1 <- b"]
