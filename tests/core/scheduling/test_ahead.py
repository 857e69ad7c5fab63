"""A worker that runs a batch is sent its next one: its jobs are not lost, not stuck, and in no smaller batch."""

import math
import random
from dataclasses import replace
from itertools import accumulate

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.core.scheduling.play import BATCHES, Play, sequences
from tests.core.scheduling.simulation import Simulation

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.policy import Policy

AHEAD = replace(BATCHES, ahead=True)


def busy(workers: int = 1, policy: Policy = AHEAD) -> Play:
    """Workers that run two jobs each: a b, c d, …"""
    play = Play(policy, workers)
    for job_id in "abcdefgh"[: 2 * workers]:
        play.submit(job_id)
    return play


def test_a_busy_worker_is_sent_a_full_batch():
    play = busy()
    assert play.submit("c") == []
    assert play.submit("d") == ["w1 << c d"]
    assert play.answer_together("a", "b") == ["w1 begins c d"]
    assert play.answer_together("c", "d") == []


def test_a_batch_that_is_not_full_waits_its_delay_and_others_join_it():
    play = busy()
    play.submit("c")
    assert play.next_deadline() == 1.0
    assert play.at(1.0).tick() == ["w1 << c"]
    assert play.submit("d") == ["w1 <+ d"]
    assert play.submit("e") == []
    assert play.answer_together("a", "b") == ["w1 begins c d"]


def test_an_idle_worker_comes_first():
    play = Play(AHEAD, 2)
    play.submit("a")
    assert play.submit("b") == ["w1 <- a b"]
    play.submit("c")
    assert play.submit("d") == ["w2 <- c d"]


def test_a_worker_that_becomes_idle_gets_what_another_has_not_begun():
    play = busy(2)
    play.submit("e")
    assert play.submit("f") == ["w1 << e f"]
    assert play.answer_together("c", "d") == ["w2 <- e f"]


def test_what_the_other_worker_has_begun_stays_there():
    play = busy(2)
    play.submit("e")
    play.submit("f")
    play.begins_early("w1")
    assert play.answer_together("c", "d") == ["w1 begins e f"]
    assert play.answer_together("a", "b") == []


def test_an_idle_worker_gets_what_another_one_has_not_begun_although_a_job_waits_for_a_fuller_batch():
    play = busy(2)
    for job_id in "efghi":
        play.submit(job_id)
    play.begins_early("w1")
    assert play.worker_up("w3") == ["w1 begins e f", "w3 <- g h"]


def test_an_idle_worker_does_not_wait_for_a_fuller_batch_while_others_have_been_sent_more():
    play = busy(2)
    play.submit("e")
    assert play.at(1.0).tick() == ["w1 << e"]
    play.begins_early("w1")
    assert play.submit("f") == ["w1 <+ f"]
    play.submit("g")
    assert play.submit("h") == ["w2 << g h"]
    assert play.worker_up("w3") == ["w1 begins e", "w3 <- f g"]


def test_older_jobs_are_not_left_behind_a_slow_batch():
    play = busy(2)
    for job_id in "efg":
        play.submit(job_id)
    assert play.submit("h") == ["w2 << g h"]
    assert play.answer_together("c", "d") == ["w2 begins g h", "w2 << e f"]


def test_a_batch_is_taken_back_from_a_busy_worker_once():
    play = busy()
    play.submit("c")
    play.submit("d")
    assert play.cancel("d") == ["d: cancelled"]
    assert play.at(5.0).submit("e") == [], "what was taken back still lies in the worker's socket"
    assert play.answer_together("a", "b") == ["w1 <- c e"]


def test_a_cancelled_job_that_has_begun_is_dropped_by_its_worker():
    play = busy()
    play.submit("c")
    play.submit("d")
    play.begins_early("w1")
    assert play.cancel("d") == ["w1 begins c d", "d: cancelled", "w1 cancel d"]


def test_a_job_expires_although_it_was_sent_ahead():
    play = busy()
    play.submit("c", expires_at=0.5)
    play.submit("d")
    assert play.at(0.5).tick() == ["c: client_timeout"]
    assert play.answer_together("a", "b") == []
    assert play.at(1.0).tick() == ["w1 <- d"]


def test_what_a_lost_worker_had_not_begun_was_not_sent():
    play = busy(2)
    for job_id in "efgh":
        play.submit(job_id)
    assert play.worker_lost("w1", Cause.response_timeout) == ["a: response_timeout", "b: response_timeout"]
    assert play.job("e").sends == 0
    assert play.answer_together("c", "d") == ["w2 begins g h", "w2 << e f"]


def test_a_retiring_worker_begins_nothing_more():
    play = busy(2)
    play.submit("e")
    play.submit("f")
    assert play.retire("w1") == ["w2 << e f"]
    assert play.answer_together("a", "b") == ["w1 released"]


def test_a_describe_goes_before_what_was_not_sent_ahead_yet():
    play = busy()
    assert play.submit("describe", unbatched=True) == []
    play.submit("c")
    assert play.submit("d") == []
    assert play.answer_together("a", "b") == ["w1 <- describe", "w1 << c d"]


def test_a_describe_goes_before_what_was_sent_ahead():
    play = busy()
    play.submit("c")
    assert play.submit("d") == ["w1 << c d"]
    assert play.submit("describe", unbatched=True) == []
    assert play.answer_together("a", "b") == ["w1 <- describe", "w1 << c d"]


def test_nothing_goes_ahead_of_priorities():
    play = busy()
    play.submit("c")
    play.submit("d")
    assert play.submit("urgent", priority=1) == []
    assert play.answer_together("a", "b") == ["w1 <- urgent c"]


def test_jobs_that_are_taken_back_wait_in_the_order_in_which_they_came():
    play = busy(3)
    for job_id in "ghijk":
        play.submit(job_id)
    assert play.at(1.0).tick() == ["w3 << k"]
    assert play.answer_together("c", "d") == ["w2 begins i j", "w3 <+ g", "w2 << h"]
    play.submit("urgent", priority=1)
    play.submit("as urgent", priority=1)
    assert play.answer_together("a", "b") == ["w1 <- urgent as urgent"]
    assert play.answer_together("e", "f") == ["w3 <- g h"]


def test_short_steps_are_not_worth_it():
    play = busy()
    for _ in range(100):
        play.scheduler.step_took(0.0001)
    play.submit("c")
    assert play.submit("d") == []
    assert play.answer_together("a", "b") == ["w1 <- c d"]
    for _ in range(100):
        play.scheduler.step_took(0.001)
    play.submit("e")
    assert play.submit("f") == ["w1 << e f"]


def test_jobs_that_were_sent_ahead_fill_the_queue():
    play = busy(policy=replace(AHEAD, queue_size=3))
    for job_id in "cde":
        play.submit(job_id)
    assert play.submit("f") == ["f: queue_full"]
    assert play.scheduler.queued == 3


def steps_ahead() -> Play:
    """A worker that runs a1, and was sent b1 and c1 ahead."""
    play = Play(sequences(ahead=True))
    assert play.submit("a1", "a") == ["w1 <- a1"]
    assert play.submit("b1", "b") == []
    assert play.submit("c1", "c") == ["w1 << b1 c1"]
    return play


def test_steps_of_other_sequences_go_ahead():
    play = steps_ahead()
    assert play.submit("a2", "a") == []
    assert play.answer("a1") == ["w1 begins b1 c1"]
    assert play.at(1.0).submit("d1", "d") == ["w1 << a2 d1"]


def test_steps_wait_for_a_full_batch():
    play = Play(sequences(ahead=True))
    play.submit("a1", "a")
    play.submit("a2", "a")
    play.submit("b1", "b")
    assert play.at(5.0).tick() == [], "the next step of a running sequence could join"
    assert play.answer("a1") == ["w1 <- b1 a2"]


def test_a_first_step_that_was_taken_back_opens_nothing():
    play = steps_ahead()
    assert play.cancel("b1") == ["b1: cancelled"]
    assert play.answer("a1") == []
    assert play.at(1.0).tick() == ["w1 <- c1"]
    assert play.job("c1").opens
    assert play.submit("b2", "b") == []


def test_steps_that_a_lost_worker_had_not_begun_go_on_elsewhere():
    play = steps_ahead()
    assert play.worker_lost("w1") == ["a1: worker_died", *(f"w1 end {each}: worker_lost" for each in "abc")]
    assert play.worker_up("w2") == ["w2 <- b1 c1"]


@settings(deadline=None)
@given(
    gaps=st.lists(st.floats(0.01, 1.0), max_size=40),
    steps=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=8),
    size=st.integers(1, 4),
)
def test_one_worker_runs_the_batches_that_it_would_have_run_without(gaps, steps, size):
    # Nothing happens at the very moment of something else: which comes first would then be arbitrary.
    moments = [at + math.sqrt(2) * 1e-5 * number for number, at in enumerate(accumulate(gaps), 1)]
    arrivals = [(at, f"job{number}", None) for number, at in enumerate(moments)]
    batches = []
    for ahead in (False, True):
        durations = iter([math.pi * 1e-6 + step for step in steps] * len(arrivals))
        simulation = Simulation(Policy(size, 0.7, ahead=ahead), [lambda durations=durations: next(durations)])
        simulation.run(arrivals)
        batches.append(simulation.batches)
    assert batches[0] == batches[1]


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95, 1.2])
def test_jobs_do_not_wait_longer_behind_slow_batches(load):
    """Four workers whose steps vary 1 : 50, and frames that take a fifth of the shortest step."""
    latencies: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(12):
        arrivals, at, chance = [], 0.0, random.Random(seed)
        for number in range(1_000):
            at += chance.expovariate(load * 4 * 4 / 12.5)
            arrivals.append((at, f"job{number}", None))
        for ahead in (False, True):
            dice = [random.Random(10 * seed + number) for number in range(4)]
            policy = Policy(4, 2.0, queue_size=10_000, ahead=ahead)
            simulation = Simulation(policy, [lambda die=die: 50 ** die.random() for die in dice], hand_over=0.2)
            simulation.run(arrivals)
            latencies[ahead] += simulation.latencies.values()
    without, with_ahead = (sorted(measured)[-len(measured) // 100] for measured in latencies.values())
    assert with_ahead <= 1.05 * without, "p99 of samples of this size varies by 2 %"
