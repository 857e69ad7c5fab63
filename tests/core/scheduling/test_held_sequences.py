"""Stored sequences that move between servers: one asks, the other lets go."""

from dataclasses import replace

from tests.core.scheduling.play import Play, sequences

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.policy import Policy


def stored(**changes: object) -> Policy:
    policy = sequences(**changes)
    return replace(policy, sequences=replace(policy.sequences, durable=True))


def test_a_job_whose_sequence_another_server_holds_is_sent_again_before_the_others_of_its_sequence():
    play = Play(stored(queue_size=4))
    assert play.submit("a", "s") == ["w1 <- a"]
    play.submit("b", "s")
    assert play.postpone("a", until=0.5) == []
    assert play.at(0.4).tick() == []
    assert play.at(0.5).tick() == ["w1 <- a"]
    assert not play.job("a").was_sent_before
    assert play.answer("a") == ["w1 <- b"]


def test_other_sequences_do_not_wait_for_one_that_is_held():
    play = Play(stored(max_sequences=2, batch_size=1))
    play.submit("a", "s")
    play.submit("b", "t")
    assert play.postpone("a", until=0.5) == ["w1 <- b"]
    assert play.at(0.5).tick() == []
    assert play.answer("b") == ["w1 <- a"]


def test_a_client_that_leaves_meanwhile_is_not_waited_for():
    play = Play(stored(max_idle=10.0))
    play.submit("a", "s")
    play.postpone("a", until=0.5)
    assert play.cancel("a") == ["a: cancelled"]
    assert play.at(0.5).tick() == []
    assert play.at(9.9).submit("b", "s") == ["w1 <- b"]


def test_a_held_sequence_whose_client_leaves_is_over_in_time():
    play = Play(stored(timeout=2.0))
    play.submit("a", "s")
    play.postpone("a", until=3.0)
    play.cancel("a")
    assert play.next_deadline() == 2.0
    assert play.at(2.0).tick() == ["w1 end s: timeout"]


def test_a_job_that_waits_for_its_sequence_expires_as_any_that_waits():
    play = Play(stored())
    play.submit("a", "s", expires_at=0.2)
    play.postpone("a", until=0.5)
    assert play.at(0.2).tick() == [f"a: {Cause.client_timeout}"]


def test_a_job_whose_time_has_ended_when_it_comes_back_is_not_sent_again():
    play = Play(stored())
    play.submit("a", "s", expires_at=0.2)
    play.let_go("s")
    effects = play.at(0.3).postpone("a", until=0.5)
    assert f"a: {Cause.client_timeout}" in effects
    assert not any(effect.startswith("w1 <- ") for effect in effects)


def test_a_job_that_comes_back_from_the_last_worker_is_refused():
    play = Play(stored())
    play.submit("a", "s")
    play.set_workers(0)
    play.retire("w1")
    assert f"a: {Cause.no_worker}" in play.postpone("a", until=0.5)


def test_a_worker_that_dies_meanwhile_is_replaced_by_another_one():
    play = Play(stored(), workers=2)
    play.submit("a", "s")
    play.postpone("a", until=0.5)
    assert play.worker_lost("w1") == ["w1 end s: suspended", "w2 <- a"]


def test_a_sequence_is_let_go_if_no_job_waits():
    play = Play(stored())
    play.submit("a", "s")
    play.submit("b", "s")
    assert play.let_go("s") == [], "a job waits here"
    play.answer("a")
    assert play.let_go("s") == [], "it ends once its job is answered"
    assert play.answer("b") == [f"w1 end s: {CloseReason.suspended}"]
    play.submit("c", "s")
    play.answer("c")
    assert play.let_go("s") == [f"w1 end s: {CloseReason.suspended}"]
    assert play.let_go("s") == play.let_go("never open") == []


def test_a_sequence_in_memory_is_never_let_go():
    play = Play(sequences())
    play.submit("a", "s")
    play.answer("a")
    assert play.let_go("s") == []
