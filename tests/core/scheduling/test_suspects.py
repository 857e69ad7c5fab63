"""What was with a worker that died runs once more, alone; what was with two of them does not run again."""

from dataclasses import replace

import pytest
from tests.core.scheduling.play import BATCHES, CONTINUOUS, Play, sequences

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.assignment import ALONE_LIMIT
from torchserve_py.core.scheduling.lost_jobs import MOST_SENDS
from torchserve_py.core.scheduling.policy import Policy

BATCH = replace(BATCHES, batch_size=3, max_batch_delay=0.0)


def durable(**limits: object) -> Policy:
    policy = sequences(**limits)
    return replace(policy, sequences=replace(policy.sequences, durable=True))


def a_batch(policy: Policy = BATCH) -> Play:
    """The only worker has a, b and c, of which b kills every worker; d waits."""
    play = Play(replace(policy, max_batch_delay=1.0))
    play.submit("a")
    play.submit("b")
    assert play.submit("c") == ["w1 <- a b c"]
    play.submit("d")
    return play


def test_the_neighbours_of_what_kills_a_worker_are_answered():
    play = a_batch()
    assert play.worker_lost("w1") == []
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.answer("a") == ["w1 <- b"]
    assert play.worker_lost("w1") == ["b: worker_died"]
    assert play.worker_up("w1") == ["w1 <- c"]
    assert play.answer("c") == []
    assert play.at(2.0).tick() == ["w1 <- d"]


def test_suspects_run_on_several_workers_each_alone():
    play = a_batch()
    play.set_workers(2)
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.worker_up("w2") == ["w2 <- b"]
    assert play.submit("e") == []
    assert play.worker_lost("w2") == ["b: worker_died"]
    assert play.answer("a") == ["w1 <- c"]


def test_nothing_is_sent_ahead_while_a_suspect_waits_or_runs():
    play = a_batch(replace(BATCH, ahead=True))
    play.submit("e")
    play.submit("f")
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.answer("a") == ["w1 <- b"]
    assert play.answer("b") == ["w1 <- c"]
    assert play.answer("c") == ["w1 <- d e f"]
    play.submit("g")
    play.submit("h")
    assert play.submit("i") == ["w1 << g h i"]


def test_a_worker_that_had_not_read_a_suspect_does_not_count():
    play = Play(replace(BATCH, batch_size=1))
    play.submit("a")
    play.worker_lost("w1")
    for _ in range(3):
        assert play.worker_up("w1") == ["w1 <- a"]
        assert play.worker_lost("w1", unread=True) == []
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.worker_lost("w1") == ["a: worker_died"]


def test_of_what_a_worker_had_only_the_latest_is_unread():
    play = Play(CONTINUOUS)
    play.set_workers(2)
    play.submit("a")
    play.submit("b")
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.at(ALONE_LIMIT).tick() == ["w1 <- b"]
    assert play.worker_lost("w1", unread=True) == ["a: worker_died"]
    assert play.worker_up("w1") == ["w1 <- b"]
    play.part("b")
    assert play.worker_lost("w1", unread=True) == ["b: worker_died"]


@pytest.mark.parametrize("happens", ["a part was seen", "it was cancelled", "it takes inputs", "it was too slow"])
def test_what_cannot_run_again_does_not(happens):
    play = Play(BATCHES)
    play.submit("a", open_ended=happens == "it takes inputs")
    play.at(1.0).tick()
    if happens == "a part was seen":
        play.part("a")
    elif happens == "it was cancelled":
        play.cancel("a")
    cause = Cause.response_timeout if happens == "it was too slow" else Cause.worker_died
    assert play.worker_lost("w1", cause) == ([] if happens == "it was cancelled" else [f"a: {cause}"])
    assert play.worker_up("w1") == []


def test_the_state_of_a_sequence_in_memory_is_lost_with_its_worker():
    play = Play(sequences())
    play.submit("a", "s")
    assert play.worker_lost("w1") == ["a: worker_died", "w1 end s: worker_lost"]


def test_a_suspect_runs_within_its_time_or_not_at_all():
    play = a_batch()
    play.answer("a", "b", "c")
    play.at(1.0).tick()
    play.submit("e", expires_at=5.0)
    play.answer("d")
    play.at(2.0).tick()
    assert play.at(3.0).worker_lost("w1") == []
    assert play.at(5.0).tick() == ["e: worker_died"]
    play.worker_up("w1")
    play.submit("f", expires_at=7.0)
    play.at(6.0).tick()
    assert play.at(7.0).worker_lost("w1") == ["f: worker_died"]


@pytest.mark.parametrize("end", ["no worker is wanted", "the model is closed"])
def test_a_suspect_for_which_no_worker_comes_has_lost_its_own(end):
    play = a_batch()
    play.worker_lost("w1")
    told = play.set_workers(0) if end == "no worker is wanted" else play.close(Cause.unregistered)
    last = Cause.no_worker if end == "no worker is wanted" else Cause.unregistered
    assert sorted(told) == ["a: worker_died", "b: worker_died", "c: worker_died", f"d: {last}"]


def test_a_describe_runs_once_more():
    play = Play(BATCHES)
    assert play.submit("a", unbatched=True) == ["w1 <- a"]
    assert play.worker_lost("w1") == []
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.worker_lost("w1") == ["a: worker_died"]


def test_a_client_that_leaves_takes_its_suspect_with_it():
    play = a_batch()
    play.worker_lost("w1")
    assert play.cancel("a") == ["a: cancelled"]
    assert play.worker_up("w1") == ["w1 <- b"]


# Continuous batching


def test_nothing_joins_a_describe_that_may_have_killed_its_worker():
    play = Play(CONTINUOUS)
    play.submit("describe", unbatched=True)
    assert play.submit("a") == ["w1 <- a"]  # the first time it is no suspect
    play.answer("a")
    assert play.worker_lost("w1") == []
    assert play.worker_up("w1") == ["w1 <- describe"]
    assert play.submit("b") == []
    assert play.answer("describe") == ["w1 <- b"]


def test_nothing_joins_a_suspect_before_its_answer_begins():
    play = Play(CONTINUOUS)
    play.submit("a")
    play.submit("b")
    play.submit("c")
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.submit("d") == []
    assert play.part("a") == ["w1 <- b"]
    assert play.answer("a") == []
    assert play.answer("b") == ["w1 <- c d"]


def test_a_suspect_that_takes_long_is_joined_after_a_while():
    play = Play(CONTINUOUS)
    play.submit("a")
    play.submit("b")
    play.worker_lost("w1")
    assert play.at(5.0).worker_up("w1") == ["w1 <- a"]
    assert play.next_deadline() == 5.0 + ALONE_LIMIT
    assert play.submit("c") == []
    assert play.at(5.0 + ALONE_LIMIT).tick() == ["w1 <- b"]
    assert play.at(5.5 + ALONE_LIMIT).answer("a") == []
    assert play.at(5.0 + 2 * ALONE_LIMIT).tick() == ["w1 <- c"]
    assert play.answer("b", "c") == []
    assert play.next_deadline() is None


def test_the_time_of_a_suspect_is_over_with_its_worker():
    play = Play(CONTINUOUS)
    play.submit("a")
    play.worker_lost("w1")
    play.worker_up("w1")
    play.worker_lost("w1")
    assert play.worker_up("w1") == []
    assert play.at(ALONE_LIMIT).tick() == []
    assert play.submit("b") == ["w1 <- b"]


def test_a_cancelled_suspect_has_its_worker_until_that_drops_it():
    play = Play(CONTINUOUS)
    play.submit("a")
    play.submit("b")
    play.worker_lost("w1")
    play.worker_up("w1")
    play.cancel("b")
    play.submit("c")
    assert play.cancel("a") == ["a: cancelled", "w1 cancel a"]
    assert play.answer("a") == ["w1 <- c"]


def test_a_worker_that_rests_with_a_suspect_wakes_as_others_do():
    play = Play(CONTINUOUS)
    play.submit("a")
    play.worker_lost("w1")
    play.worker_up("w1")
    play.rest("w1", rests=True)
    play.submit("b")
    assert play.answer("a") == []
    assert play.rest("w1", rests=False) == ["w1 <- b"]


# Stored sequences


def steps(**limits: object) -> Play:
    """The only worker has a step of each of four sequences, and that of s2 kills every worker."""
    play = Play(durable(batch_size=4, max_batch_delay=0.0, **limits))
    for number in (1, 2, 3, 4):
        play.submit(f"a{number}", f"s{number}")
        play.answer(f"a{number}")
    play.submit("describe", unbatched=True)
    for number in (1, 2, 3, 4):
        play.submit(f"b{number}", f"s{number}")
    assert play.answer("describe") == ["w1 <- b1 b2 b3 b4"]
    return play


def test_steps_that_shared_a_batch_with_what_kills_workers_are_applied():
    play = steps()
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- b1"]
    assert play.submit("c1", "s1") == []
    assert play.answer("b1") == ["w1 <- b2"]
    assert "w1 end s2: suspended" in play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- b3"]
    assert play.answer("b3") == ["w1 <- b4"]
    assert play.answer("b4") == ["w1 <- c1 b2"]
    assert play.asks("b2") == "worker_died"


def test_a_step_runs_until_two_workers_have_read_it():
    play = Play(durable())
    play.submit("a", "s")
    play.worker_lost("w1")
    for _ in range(3):
        assert play.worker_up("w1") == ["w1 <- a"]
        assert play.asks("a") == ""
        assert play.worker_lost("w1", unread=True) == ["w1 end s: suspended"]
    play.worker_up("w1")
    play.worker_lost("w1")
    assert play.worker_up("w1") == ["w1 <- a"]
    assert play.asks("a") == "worker_died"


def test_a_suspect_that_another_server_holds_stays_one():
    play = steps()
    play.worker_lost("w1")
    play.worker_up("w1")
    assert play.postpone("b1", until=1.0) == ["w1 <- b2"]
    assert play.answer("b2", "b3", "b4") == ["w1 <- b3", "w1 <- b4"]
    play.submit("c2", "s2")
    play.submit("c3", "s3")
    assert play.at(1.0).answer("c2") == ["w1 <- b1"]


def test_a_question_that_no_worker_survives_ends():
    play = Play(durable())
    play.submit("a", "s")
    for _ in range(MOST_SENDS - 1):
        assert play.worker_lost("w1") == ["w1 end s: suspended"]
        assert play.worker_up("w1") == ["w1 <- a"]
    assert play.asks("a") == "worker_died"
    assert play.worker_lost("w1")[0] == "a: outcome_unknown"
