"""Many sequences at once: none waits for another, and order holds."""

import contextlib
import gc
import random
from collections.abc import Callable, Iterator

import pytest
from tests.core.scheduling.play import sequences

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.effects import Begin, CloseSequence, Finish, Send
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.scheduler import Scheduler


def started(policy: Policy) -> Scheduler:
    scheduler = Scheduler(policy)
    scheduler.set_workers(1, 0.0)
    scheduler.worker_up("w1", 0.0)
    return scheduler


def batches(effects) -> list[list[str]]:
    return [[job.id for job in effect.jobs] for effect in effects if isinstance(effect, Send)]


def test_with_1000_idle_sequences_a_ready_one_is_dispatched_at_once():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.0, max_idle=60.0, max_sequences=1_001))
    for number in range(1_000):
        assert batches(scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)) == [[f"open{number}"]]
        scheduler.parts([(f"open{number}", False)], 0.0)
    assert scheduler.open_sequences == 1_000
    assert batches(scheduler.submit(Job("known", "s500"), 1.0)) == [["known"]]
    scheduler.parts([("known", False)], 1.0)
    assert batches(scheduler.submit(Job("new", "s1000"), 1.0)) == [["new"]]


def test_with_1000_idle_sequences_a_ready_one_waits_for_no_more_than_the_batch_delay():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.1, max_idle=60.0, max_sequences=1_000))
    for number in range(1_000):
        scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
        scheduler.tick(0.1)
        scheduler.parts([(f"open{number}", False)], 0.1)
    assert scheduler.submit(Job("known", "s500"), 1.0) == ()
    assert batches(scheduler.tick(1.1)) == [["known"]]


def test_1000_open_sequences_on_one_worker_with_batches_of_8_are_all_answered():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.1, max_idle=60.0, max_sequences=1_000))
    answered = 0
    for step in range(3):
        running: list[list[str]] = []
        for number in range(1_000):
            running += batches(scheduler.submit(Job(f"{step}-{number}", f"s{number}"), float(step)))
        while scheduler.queued or scheduler.in_flight:
            if not running:
                running += batches(scheduler.tick(scheduler.next_deadline()))
            batch = running.pop()
            assert len(batch) <= 8
            for job_id in batch:
                running += batches(scheduler.parts([(job_id, False)], float(step)))
                answered += 1
    assert answered == 3_000
    assert scheduler.open_sequences == 1_000


def test_order_within_a_sequence_is_strict_under_many_posts():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.0, queue_size=1_000, max_sequences=20))
    posts = [(f"s{number % 20}", number) for number in range(4_000)]
    random.Random(7).shuffle(posts)
    expected: dict[str, list[str]] = {f"s{number}": [] for number in range(20)}
    sent: dict[str, list[str]] = {f"s{number}": [] for number in range(20)}
    running: list[str] = []

    def note(effects):
        for effect in effects:
            for job in effect.jobs:
                sent[job.sequence_id].append(job.id)
                running.append(job.id)

    for sequence_id, number in posts:
        expected[sequence_id].append(f"job{number}")
        note(scheduler.submit(Job(f"job{number}", sequence_id), 0.0))
        if number % 3 == 0:
            note(scheduler.parts([(running.pop(), False)], 0.0))
    while running:
        note(scheduler.parts([(running.pop(), False)], 0.0))
    assert sent == expected


class Unsearchable(dict):
    """Answers for single keys only."""

    def __iter__(self):
        raise AssertionError("all open sequences were looked at")

    keys = values = items = __iter__


@pytest.mark.parametrize(
    "leave", [lambda it: it.worker_lost("w1", Cause.worker_died, 1.0), lambda it: it.retire("w1", 1.0)]
)
def test_a_worker_that_leaves_costs_a_look_at_its_own_sequences_only(leave):
    scheduler = Scheduler(sequences(batch_size=1, max_batch_delay=0.0, max_idle=60.0, max_sequences=100))
    scheduler.set_workers(2, 0.0)
    scheduler.worker_up("w1", 0.0)
    scheduler.worker_up("w2", 0.0)
    for number in range(100):
        scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
        scheduler.parts([(f"open{number}", False)], 0.0)
    scheduler._source.open = Unsearchable(scheduler._source.open)
    ended = [effect for effect in leave(scheduler) if isinstance(effect, CloseSequence)]
    assert len(ended) == scheduler.open_sequences == 50
    assert {effect.worker_id for effect in ended} == {"w1"}


def with_idle_sequences(count: int) -> Scheduler:
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.0, max_idle=60.0, max_sequences=count + 1))
    for number in range(count):
        scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
        scheduler.parts([(f"open{number}", False)], 0.0)
    return scheduler


def ended(effects) -> int:
    return sum(isinstance(effect, CloseSequence) for effect in effects)


def test_many_sequences_that_expire_at_once_end_some_at_a_time():
    scheduler = with_idle_sequences(1_200)
    counts = [ended(scheduler.tick(60.0))]
    while (deadline := scheduler.next_deadline()) is not None and deadline <= 60.0:
        counts.append(ended(scheduler.tick(60.0)))
    assert counts == [500, 500, 200]
    assert scheduler.open_sequences == 0


def test_many_sequences_of_a_lost_worker_end_some_at_a_time():
    scheduler = with_idle_sequences(1_200)
    effects = scheduler.worker_lost("w1", Cause.worker_died, 1.0)
    assert {effect.worker_id for effect in effects if isinstance(effect, CloseSequence)} == {"w1"}
    scheduler.worker_up("w1", 1.0)  # its successor, which never had them
    later = []
    while (deadline := scheduler.next_deadline()) is not None and deadline <= 1.0:
        effects = scheduler.tick(1.0)
        assert ended(effects) <= 500
        later += effects
    assert {effect.worker_id for effect in later if isinstance(effect, CloseSequence)} <= {None}
    assert scheduler.open_sequences == 0


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda scheduler: scheduler.tick(60.0), Cause.sequence_expired),
        (lambda scheduler: scheduler.worker_lost("w1", Cause.worker_died, 59.0), Cause.sequence_lost),
    ],
)
def test_a_job_of_one_that_is_still_to_be_ended_is_refused_as_if_it_were_over(end, cause):
    scheduler = with_idle_sequences(3_000)
    scheduler.worker_up("w2", 0.0)
    end(scheduler)
    now = 60.0 if cause is Cause.sequence_expired else 59.0
    (finish,) = [each for each in scheduler.submit(Job("late", "s2999"), now) if isinstance(each, Finish)]
    assert (finish.job.id, finish.cause) == ("late", cause)
    scheduler.submit(Job("again", "s2998", starts_sequence=True), now)
    assert scheduler.sequence("s2998").waiting or scheduler.sequence("s2998").in_flight


def test_closing_ends_sequences_some_at_a_time():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.0, max_idle=60.0, max_sequences=10))
    for number in range(10):
        scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
        if number < 8:
            scheduler.parts([(f"open{number}", False)], 0.0)
    kinds = [[type(effect) for effect in scheduler.close(Cause.unregistered, 1.0, 3)] for _ in range(4)]
    assert kinds[0].count(Finish) == 2
    assert [each.count(CloseSequence) for each in kinds] == [2 + 3, 3, 2, 0]
    assert scheduler.open_sequences == 0


def test_a_new_sequence_costs_a_look_at_one_worker():
    scheduler = Scheduler(sequences(batch_size=1, max_batch_delay=0.0, max_idle=60.0, max_sequences=300))
    scheduler.set_workers(100, 0.0)
    for number in range(100):
        scheduler.worker_up(f"w{number}", 0.0)
    scheduler._source._lanes = Unsearchable(scheduler._source._lanes)
    for number in range(300):
        scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
    per_worker: dict[str, int] = {}
    for sequence in scheduler.sequences():
        per_worker[sequence.lane.worker_id] = per_worker.get(sequence.lane.worker_id, 0) + 1
    assert set(per_worker.values()) == {3}


def test_batches_ahead_cost_no_look_at_the_other_workers():
    scheduler = Scheduler(Policy(batch_size=1, queue_size=1_000, ahead=True), lambda worker_id: 1)
    scheduler.set_workers(100, 0.0)
    for number in range(100):
        scheduler.worker_up(f"w{number}", 0.0)
    running = [job_id for number in range(100) for [job_id] in batches(scheduler.submit(Job(f"{number}"), 0.0))]
    for number in range(100, 300):
        scheduler.submit(Job(f"{number}"), 0.0)
    assert scheduler._workers["w0"].lane.jobs_ahead == 100
    workers = Unsearchable(scheduler._workers)
    scheduler._workers = scheduler._assignment.workers = workers
    answered = 0
    while running:
        for effect in scheduler.parts([(running.pop(0), False)], 1.0):
            running += [job.id for job in effect.jobs] if isinstance(effect, Send | Begin) else []
        answered += 1
    assert answered == 300


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Yield what returns at how many objects the collector looks that were made from now on."""
    gc.collect()
    gc.freeze()

    def count() -> int:
        gc.collect()
        return len(gc.get_objects())

    try:
        yield count
    finally:
        gc.unfreeze()


def test_the_collector_has_one_object_to_look_at_for_a_sequence_that_rests_and_none_for_one_that_is_over():
    scheduler = started(sequences(batch_size=8, max_batch_delay=0.0, max_idle=60.0, max_sequences=2_000))
    with counted() as containers:
        for number in range(2_000):
            scheduler.submit(Job(f"open{number}", f"s{number}"), 0.0)
            scheduler.parts([(f"open{number}", False)], 0.0)
        assert scheduler.open_sequences == 2_000
        assert 2_000 <= containers() < 2_100
        while scheduler.open_sequences:
            scheduler.tick(100.0)
        assert containers() < 100
