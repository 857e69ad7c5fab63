"""Fifo x WhileBelow: continuous batching and concurrent workers."""

from tests.core.scheduling.play import CONTINUOUS, Play

from torchserve_py.core.scheduling.policy import Policy


def test_a_job_joins_at_once_while_there_is_room():
    play = Play(CONTINUOUS)
    assert play.submit("a") == ["w1 <- a"]
    assert play.submit("b") == ["w1 <- b"]
    assert play.submit("c") == []
    assert play.next_deadline() is None


def test_each_place_that_is_freed_is_filled_at_once():
    play = Play(CONTINUOUS)
    for name in "abcd":
        play.submit(name)
    assert play.part("a") == []
    assert play.answer("b") == ["w1 <- c"]
    assert play.answer("a") == ["w1 <- d"]


def test_what_waited_for_a_worker_joins_it_together():
    play = Play(CONTINUOUS, workers=0)
    play.set_workers(1)
    for name in "abc":
        play.submit(name)
    assert play.worker_up("w1") == ["w1 <- a b"]


def test_the_worker_with_the_fewest_running_jobs_takes_the_next():
    play = Play(CONTINUOUS, workers=2)
    assert play.submit("a") + play.submit("b") + play.submit("c") == ["w1 <- a", "w2 <- b", "w1 <- c"]
    play.answer("a", "c")
    assert play.submit("d") + play.submit("e") == ["w1 <- d", "w2 <- e"]
    assert play.scheduler.in_flight == 3


def test_a_cancelled_stream_holds_its_place_until_the_worker_lets_go():
    play = Play(CONTINUOUS)
    for name in "abc":
        play.submit(name)
    play.part("a")
    assert play.cancel("a") == ["a: cancelled", "w1 cancel a"]
    assert play.part("a") == []
    assert play.answer("a") == ["w1 <- c"]


def test_a_describe_travels_alone_even_beside_others():
    play = Play(CONTINUOUS, workers=0)
    play.set_workers(1)
    play.submit("a")
    play.submit("describe", unbatched=True)
    assert play.worker_up("w1") == ["w1 <- describe", "w1 <- a"]


def test_a_job_ticket_is_free_while_a_worker_has_room():
    play = Play(Policy(batch_size=2, continuous=True, job_ticket=True))
    assert play.submit("a") + play.submit("b") == ["w1 <- a", "w1 <- b"]
    assert play.submit("c") == ["c: queue_full"]
