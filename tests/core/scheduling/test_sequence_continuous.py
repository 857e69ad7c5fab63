"""Sequences x WhileBelow: sequences run at once, and a second job may join the stream of its own sequence."""

import math

from tests.core.scheduling.play import Play, sequences

from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import SequencePolicy
from torchserve_py.core.scheduling.sequence import READY, Sequence, SequenceLane

POLICY = sequences(batch_size=2, continuous=True, queue_size=3)


def test_sequences_join_at_once_while_fewer_than_the_batch_size_run():
    play = Play(POLICY)
    assert play.submit("a", "s") + play.submit("b", "t") + play.submit("c", "u") == ["w1 <- a", "w1 <- b"]
    assert play.answer("a") == ["w1 <- c"]


def test_a_second_job_joins_a_stream_of_its_own_sequence_even_in_a_full_batch():
    play = Play(POLICY)
    play.submit("a", "s")
    play.submit("b", "t")
    play.submit("waits", "u")
    assert play.part("a") == []
    assert play.submit("cancel", "s") == ["w1 <- cancel"]
    play.part("b")
    assert play.submit("cancel too", "t") == ["w1 <- cancel too"]
    assert play.scheduler.in_flight == 4


def test_a_second_job_joins_only_after_the_first_part():
    play = Play(POLICY)
    play.submit("a", "s")
    assert play.submit("b", "s") == []
    assert play.part("a") == ["w1 <- b"]
    assert play.part("a") == []


def test_there_is_never_a_third():
    play = Play(POLICY)
    play.submit("a", "s")
    play.part("a")
    assert play.submit("b", "s") == ["w1 <- b"]
    assert play.submit("c", "s") == []
    assert play.part("b") == []
    assert play.answer("b") == ["w1 <- c"]


def test_a_third_joins_when_the_first_is_over_and_the_second_streams():
    play = Play(POLICY)
    play.submit("a", "s")
    play.part("a")
    play.submit("b", "s")
    play.submit("c", "s")
    assert play.answer("a") == []
    assert play.part("b") == ["w1 <- c"]


def test_two_waiting_jobs_of_a_sequence_never_travel_together():
    play = Play(POLICY, workers=0)
    play.set_workers(1)
    play.submit("a", "s")
    play.submit("b", "s")
    play.submit("c", "t")
    assert play.worker_up("w1") == ["w1 <- a c"]
    assert play.answer("a") == ["w1 <- b"]


def test_a_sequence_counts_once_however_many_of_its_jobs_run():
    play = Play(POLICY)
    play.submit("a", "s")
    play.part("a")
    play.submit("b", "s")
    assert play.submit("c", "t") == ["w1 <- c"]
    assert play.submit("d", "u") == []
    assert play.answer("a") == []
    assert play.answer("b") == ["w1 <- d"]


def test_nothing_joins_a_cancelled_stream():
    play = Play(POLICY)
    play.submit("a", "s")
    play.part("a")
    play.cancel("a")
    assert play.submit("b", "s") == []
    assert play.part("a") == []
    assert play.answer("a") == ["w1 <- b"]


def test_a_sequence_that_is_about_to_end_takes_no_further_job():
    play = Play(POLICY)
    play.submit("a", "s")
    play.part("a")
    play.submit("last", "s", ends_sequence=True)
    assert play.answer("last") == []
    assert play.submit("next", "s") == []
    assert play.part("a") == []
    assert play.answer("a") == ["w1 end s: ended", "w1 <- next"]


def test_a_joiner_that_is_held_up_by_describes_keeps_its_turn():
    play = Play(sequences(batch_size=1, continuous=True))
    play.submit("a", "s")
    play.part("a")
    assert play.submit("describe", unbatched=True) == ["w1 <- describe"]
    assert play.submit("b", "s") == []
    assert play.submit("c", "t") == []
    assert play.answer("describe") == ["w1 <- b"]


def test_a_joiner_that_is_held_up_may_be_cancelled():
    play = Play(sequences(batch_size=1, continuous=True))
    play.submit("a", "s")
    play.part("a")
    play.submit("describe", unbatched=True)
    play.submit("b", "s")
    assert play.cancel("b") == ["b: cancelled"]
    assert play.answer("describe") == []
    assert play.submit("c", "s") == ["w1 <- c"]


def test_a_joiner_that_is_held_up_does_not_join_a_sequence_that_is_about_to_end():
    play = Play(sequences(batch_size=1, continuous=True))
    play.submit("a", "s")
    play.part("a")
    play.submit("describe", unbatched=True)
    play.submit("b", "s")
    assert play.close_sequence("s") == []
    assert play.answer("describe") == []
    assert play.answer("a") == ["w1 end s: ended", "w1 <- b"]


def test_a_step_that_goes_alone_is_not_exchanged_for_one_that_joins():
    lane = SequenceLane("w1", 1, 0.0, SequencePolicy(10.0, None, 3, 10), None)
    running, joining, suspect = (Job(name, name[0]) for name in ("a1", "a2", "b1"))
    joins = Sequence("a", lane, (joining,), math.inf, 0.0, 0.0, READY, in_flight=(running,))
    alone = Sequence("b", lane, (suspect,), math.inf, 0.0, 0.0, READY)
    lane.put(alone, 0.0)
    lane.put_first(joins, 0.0)
    lane.running = 1
    assert lane.take(1, alone) == []
    assert lane.take(1) == [joining]
