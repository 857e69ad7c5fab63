"""Fifo x WhenIdle: dynamic batching."""

from tests.core.scheduling.play import BATCHES, Play

from torchserve_py.core.scheduling.policy import Policy


def test_a_full_batch_is_sent_at_once():
    play = Play(BATCHES)
    assert play.submit("a") == []
    assert play.submit("b") == ["w1 <- a b"]


def test_a_partial_batch_is_sent_when_its_oldest_job_has_waited_the_delay():
    play = Play(BATCHES)
    assert play.at(5.0).submit("a") == []
    assert play.next_deadline() == 6.0
    assert play.at(5.9).tick() == []
    assert play.at(6.0).tick() == ["w1 <- a"]
    assert play.next_deadline() is None


def test_a_late_timer_does_not_let_a_job_miss_its_batch():
    play = Play(BATCHES)
    play.submit("a")
    assert play.at(7.0).submit("b") == ["w1 <- a b"]


def test_a_batch_of_one_never_waits():
    play = Play(Policy(batch_size=1, max_batch_delay=100.0))
    assert play.submit("a") == ["w1 <- a"]


def test_without_a_delay_a_job_never_waits_for_others():
    play = Play(Policy(batch_size=8, max_batch_delay=0.0))
    assert play.submit("a") == ["w1 <- a"]


def test_the_delay_counts_from_arrival_not_from_when_a_worker_is_free():
    play = Play(BATCHES)
    play.submit("a")
    play.submit("b")
    assert play.at(0.5).submit("c") == []
    assert play.at(0.9).answer("a") == []
    assert play.at(1.2).answer("b") == []
    assert play.next_deadline() == 1.5
    assert play.at(1.5).tick() == ["w1 <- c"]


def test_a_job_that_waited_for_a_worker_longer_than_the_delay_goes_with_the_next_batch():
    play = Play(BATCHES)
    play.submit("a")
    play.submit("b")
    play.submit("c")
    assert play.at(3.0).answer("a", "b") == ["w1 <- c"]


def test_jobs_keep_their_order_and_the_batch_its_size():
    play = Play(Policy(batch_size=3, max_batch_delay=1.0), workers=0)
    play.set_workers(1)
    for name in "abcdefg":
        play.submit(name)
    assert play.worker_up("w1") == ["w1 <- a b c"]
    assert play.answer("a", "b", "c") == ["w1 <- d e f"]
    assert play.answer("d", "e", "f") == []
    assert play.at(1.0).tick() == ["w1 <- g"]


def test_a_queue_that_is_full_before_the_batch_is_waits_for_nobody():
    play = Play(Policy(batch_size=8, max_batch_delay=100.0, queue_size=2))
    assert play.submit("a") == []
    assert play.submit("b") == ["w1 <- a b"]


def test_the_worker_that_has_been_idle_longest_takes_the_batch():
    play = Play(Policy(), workers=3)
    assert play.submit("a") + play.submit("b") + play.submit("c") == ["w1 <- a", "w2 <- b", "w3 <- c"]
    play.answer("b", "a", "c")
    assert play.submit("d") + play.submit("e") + play.submit("f") == ["w2 <- d", "w1 <- e", "w3 <- f"]


def test_a_full_queue_refuses():
    play = Play(Policy(queue_size=2))
    play.submit("running")
    assert play.submit("a") + play.submit("b") == []
    assert play.scheduler.remaining_capacity == 0
    assert play.submit("c") == ["c: queue_full"]
    assert play.answer("running") == ["w1 <- a"]
    assert play.submit("d") == []


def test_a_cancelled_waiting_job_is_never_sent():
    play = Play(Policy())
    play.submit("a")
    play.submit("b")
    play.submit("c")
    assert play.cancel("b") == ["b: cancelled"]
    assert play.cancel("b") == []
    assert play.answer("a") == ["w1 <- c"]


def test_a_cancelled_running_job_keeps_its_place_until_its_worker_lets_go():
    play = Play(Policy())
    play.submit("a")
    play.submit("b")
    assert play.cancel("a") == ["a: cancelled", "w1 cancel a"]
    assert play.cancel("a") == []
    assert play.part("a") == []
    assert play.scheduler.in_flight == 1
    assert play.answer("a") == ["w1 <- b"]


def test_parts_of_unknown_jobs_are_of_no_consequence():
    play = Play(Policy())
    play.submit("a")
    play.answer("a")
    assert play.answer("a") + play.part("a") + play.answer("never") == []


def test_a_job_that_expires_while_it_waits_is_never_sent():
    play = Play(Policy())
    play.submit("a")
    play.submit("b", expires_at=5.0)
    assert play.next_deadline() == 5.0
    assert play.at(5.0).tick() == ["b: client_timeout"]
    assert play.answer("a") == []


def test_a_job_that_has_expired_is_not_sent_though_nobody_ticked():
    play = Play(Policy())
    play.submit("a")
    play.submit("b", expires_at=5.0)
    play.submit("c", expires_at=50.0)
    assert play.at(6.0).answer("a") == ["b: client_timeout", "w1 <- c"]


def test_a_job_that_was_sent_does_not_expire():
    play = Play(Policy())
    play.submit("a", expires_at=5.0)
    assert play.at(6.0).tick() == []
    assert play.scheduler.in_flight == 1


def test_a_job_that_arrives_expired_is_refused():
    assert Play(Policy()).at(5.0).submit("a", expires_at=5.0) == ["a: client_timeout"]


def test_a_describe_goes_first_and_alone():
    play = Play(BATCHES)
    play.submit("a")
    assert play.submit("describe", unbatched=True) == ["w1 <- describe"]
    assert play.submit("b") == []
    assert play.submit("c") == []
    assert play.submit("describe again", unbatched=True) == []
    assert play.answer("describe") == ["w1 <- describe again"]
    assert play.answer("describe again") == ["w1 <- a b"]


def test_a_waiting_describe_can_be_cancelled():
    play = Play(Policy())
    play.submit("a")
    play.submit("describe", unbatched=True)
    assert play.cancel("describe") == ["describe: cancelled"]
    assert play.answer("a") == []


def test_a_job_ticket_admits_only_what_a_worker_can_take_at_once():
    play = Play(Policy(batch_size=4, max_batch_delay=1.0, job_ticket=True), workers=2)
    assert play.submit("a") + play.submit("b") == ["w1 <- a", "w2 <- b"]
    assert play.submit("c") == ["c: queue_full"]
    play.answer("b")
    assert play.submit("d") == ["w2 <- d"]


def test_counts():
    play = Play(Policy(batch_size=2, queue_size=5))
    scheduler = play.scheduler
    assert scheduler.is_idle
    play.submit("a")
    play.submit("b")
    play.submit("c")
    assert (scheduler.in_flight, scheduler.queued, scheduler.remaining_capacity) == (1, 2, 3)
    assert scheduler.open_sequences == 0
    play.answer("a")
    play.answer("b", "c")
    assert scheduler.is_idle


def test_jobs_carry_where_and_when_they_ran():
    from torchserve_py.core.scheduling.job import Job

    play = Play(BATCHES)
    job = Job("a")
    play.scheduler.submit(job, 2.0)
    play.at(3.5).tick()
    assert (job.worker_id, job.submitted_at, job.sent_at) == ("w1", 2.0, 3.5)


def test_answers_that_come_together_make_room_for_one_full_batch():
    play = Play(Policy(batch_size=2, max_batch_delay=0.0))
    assert play.submit("a") == ["w1 <- a"]
    play.submit("b")
    play.submit("c")
    assert play.answer("a") == ["w1 <- b c"]
    play.submit("d")
    assert play.answer_together("b", "c", "unknown") == ["w1 <- d"]
