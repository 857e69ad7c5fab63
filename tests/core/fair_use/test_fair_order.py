"""Clients whose requests wait take turns: the order by itself, and in a scheduler."""

from collections import Counter, OrderedDict
from itertools import combinations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.scheduling.play import CONTINUOUS, Play, sequences

from torchserve_py.core.fair_use.fair_order import OLDEST_EVERY, FairOrder
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import Policy

ONE_AT_A_TIME = Policy(batch_size=1, queue_size=100)


def busy(policy: Policy = ONE_AT_A_TIME) -> Play:
    play = Play(policy)
    for number in range(policy.batch_size):
        play.submit(f"running{number}")
    return play


def served(play: Play, first: str = "running0") -> list[str]:
    """Answer what runs, one after the other, until nothing waits; return the ids in that order."""
    order = []
    running = first
    while effects := play.answer(running):
        running = effects[0].removeprefix("w1 <- ")
        order.append(running)
    return order


def test_clients_take_turns() -> None:
    play = busy()
    for number in range(6):
        play.submit(f"greedy{number}", client="greedy")
    for number in range(2):
        play.submit(f"polite{number}", client="polite")
    assert served(play) == ["greedy0", "polite0", "greedy1", "polite1", "greedy2", "greedy3", "greedy4", "greedy5"]


def test_who_comes_late_does_not_make_up_for_it() -> None:
    play = busy()
    for number in range(8):
        play.submit(f"greedy{number}", client="greedy")
    running = "running0"
    for _ in range(4):
        (effect,) = play.answer(running)
        running = effect.removeprefix("w1 <- ")
    for number in range(3):
        play.submit(f"late{number}", client="late")
    order = served(play, running)
    assert order[:6] == ["greedy4", "late0", "greedy5", "late1", "greedy6", "late2"]


def test_a_weight_of_two_is_two_turns() -> None:
    play = busy()
    for number in range(6):
        play.submit(f"a{number}", client="a", weight=2.0)
        play.submit(f"b{number}", client="b")
    counts = Counter(each[0] for each in served(play)[:9])
    assert counts == {"a": 6, "b": 3}


def test_batches_are_shared_as_well() -> None:
    play = busy(Policy(batch_size=4, queue_size=100, max_batch_delay=1.0))
    for number in range(8):
        play.submit(f"g{number}", client="greedy")
    play.submit("p", client="polite")
    (effect,) = play.answer_together(*(f"running{number}" for number in range(4)))
    assert effect == "w1 <- g0 p g1 g2"


def test_jobs_that_join_running_ones_too() -> None:
    play = busy(CONTINUOUS)
    for number in range(4):
        play.submit(f"g{number}", client="greedy")
    play.submit("p", client="polite")
    assert play.answer("running0") == ["w1 <- g0"]
    assert play.answer("g0") == ["w1 <- p"]


def test_steps_of_sequences_take_turns_by_client() -> None:
    play = Play(sequences(batch_size=1, max_sequences=10))
    play.submit("running", "s")
    for number in range(3):
        play.submit(f"g{number}", f"g{number}", client="greedy")
    play.submit("p", "p", client="polite")
    assert play.answer("running") == ["w1 <- g0"]
    assert play.answer("g0") == ["w1 <- p"]


def test_new_sequences_that_wait_for_a_worker_too() -> None:
    play = Play(sequences(batch_size=1, max_sequences=10), workers=0)
    play.set_workers(1)
    for number in range(3):
        play.submit(f"g{number}", f"g{number}", client="greedy")
    play.submit("p", "p", client="polite")
    assert play.worker_up("w1") == ["w1 <- g0"]
    assert play.answer("g0") == ["w1 <- p"]


def test_within_a_priority_clients_take_turns() -> None:
    play = busy()
    for number in range(3):
        play.submit(f"greedy{number}", client="greedy", priority=1)
    play.submit("polite", client="polite", priority=1)
    play.submit("less", client="polite")
    assert served(play) == ["greedy0", "polite", "greedy1", "greedy2", "less"]


def test_a_request_that_leaves_lets_those_of_its_client_move_up() -> None:
    play = busy()
    for number in range(4):
        play.submit(f"a{number}", client="a")
        play.submit(f"b{number}", client="b")
    play.cancel("a0")
    play.cancel("a1")
    assert served(play) == ["a2", "b0", "a3", "b1", "b2", "b3"]


def test_who_cancels_and_comes_again_has_no_more_turns() -> None:
    play = busy()
    for number in range(3):
        play.submit(f"b{number}", client="b")
    for number in range(200):
        play.submit(f"gone{number}", client="a")
        play.cancel(f"gone{number}")
    for number in range(3):
        play.submit(f"a{number}", client="a")
    assert served(play) == ["b0", "a0", "b1", "a1", "b2", "a2"]


def test_what_is_put_back_by_and_by_goes_in_its_old_order() -> None:
    order: FairOrder[Job] = FairOrder(lambda job: job, True)
    waiting: OrderedDict[Job, float] = OrderedDict()
    jobs = [Job(str(number), client="ab"[number == 9]) for number in range(10)]
    for job in jobs[8:]:
        waiting[job] = 0.0
        order.add(job, waiting, newest_first=False)
    for number in (5, 7, 5, 3):  # two workers give back what they were sent ahead: 5, then 3 and 7
        waiting[jobs[number]] = 0.0
        waiting.move_to_end(jobs[number], last=False)
        order.put_back(jobs[number], waiting)
    taken: list[Job] = []
    while waiting:
        take(order, waiting, taken)
    assert [job.id for job in taken] == ["3", "5", "7", "8", "9"]


def test_of_clients_that_come_once_few_are_remembered_although_there_is_always_somebody_waiting() -> None:
    order: FairOrder[Job] = FairOrder(lambda job: job, True)
    waiting: OrderedDict[Job, float] = OrderedDict()
    taken: list[Job] = []
    for number in range(5_000):
        job = Job(str(number), client=f"client {number}")
        waiting[job] = 0.0
        order.add(job, waiting, newest_first=False)
        if number > 2:
            take(order, waiting, taken)
    (turns,) = order._turns.values()
    assert len(turns.backlogs) < 200
    assert [job.id for job in taken[-2:]] == ["4995", "4996"]


# A full queue.

SMALL = Policy(batch_size=1, queue_size=4)


def test_a_full_queue_makes_room_for_who_has_less_in_it() -> None:
    play = busy(SMALL)
    for number in range(4):
        play.submit(f"greedy{number}", client="greedy")
    assert play.submit("greedy4", client="greedy") == ["greedy4: queue_full"]
    assert play.submit("polite0", client="polite") == ["greedy3: queue_full"]
    assert play.submit("polite1", client="polite") == ["greedy2: queue_full"]
    assert play.submit("polite2", client="polite") == ["polite2: queue_full"]
    assert served(play) == ["greedy0", "polite0", "greedy1", "polite1"]


def test_it_does_so_whatever_the_priority_of_both() -> None:
    play = busy(SMALL)
    for number in range(4):
        play.submit(f"greedy{number}", client="greedy", priority=1)
    assert play.submit("polite", client="polite", priority=1) == ["greedy3: queue_full"]


def test_the_less_urgent_keep_a_part_of_it() -> None:
    size = 2 * OLDEST_EVERY
    play = busy(Policy(batch_size=1, queue_size=size))
    for number in range(size):
        play.submit(f"plain{number}", client="plain")
    outcomes = [play.submit(f"urgent{number}", client="urgent", priority=1)[0] for number in range(size)]
    assert outcomes[: size - 2] == [f"plain{number}: queue_full" for number in reversed(range(2, size))]
    assert outcomes[size - 2 :] == [f"urgent{number}: queue_full" for number in (size - 2, size - 1)]


def test_one_request_of_another_client_is_not_refused_for_one() -> None:
    play = busy(Policy(batch_size=1, queue_size=2))
    play.submit("a", client="a")
    play.submit("b", client="b")
    assert play.submit("c", client="c") == ["c: queue_full"]


# Properties.


@given(st.lists(st.tuples(st.sampled_from("abcxx!"), st.sampled_from((0, 0, 0, 1, 2)), st.booleans()), max_size=150))
@settings(deadline=None)
def test_whatever_happens_each_item_is_taken_once(commands: list[tuple[str, int, bool]]) -> None:
    """``x`` takes the first, ``!`` withdraws one."""
    order: FairOrder[Job] = FairOrder(lambda job: job, True)
    waiting: OrderedDict[Job, float] = OrderedDict()
    taken: list[Job] = []
    for number, (what, priority, newest_first) in enumerate(commands):
        if what in "abc":
            job = Job(str(number), client=what, priority=priority)
            assert order.before(job, waiting, newest_first=newest_first) >= 0
            waiting[job] = 0.0
            if newest_first:
                waiting.move_to_end(job, last=False)
            order.add(job, waiting, newest_first=newest_first)
        elif waiting and what == "x":
            take(order, waiting, taken)
        elif waiting:
            job = list(waiting)[len(waiting) // 2]
            order.withdraw(job)
            del waiting[job]
    while waiting:
        take(order, waiting, taken)
    assert len(taken) == len(set(taken))
    assert not order.decides


def take(order: FairOrder[Job], waiting: OrderedDict[Job, float], taken: list[Job]) -> None:
    job = order.first(waiting) if order.decides else next(iter(waiting))
    order.took(job)
    del waiting[job]
    taken.append(job)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8), min_size=2), st.randoms())
@settings(deadline=None)
def test_clients_that_always_wait_have_their_shares_at_any_time(weights: dict[str, int], random: Random) -> None:
    """The bound of start-time fair queueing: nobody is ahead of another by more than one request of each."""
    order: FairOrder[Job] = FairOrder(lambda job: job, True)
    waiting: OrderedDict[Job, float] = OrderedDict()
    jobs = [
        Job(f"{name}{number}", client=name, weight=weight) for name, weight in weights.items() for number in range(80)
    ]
    random.shuffle(jobs)
    for job in jobs:
        waiting[job] = 0.0
        order.add(job, waiting, newest_first=False)
    taken: list[Job] = []
    counts: Counter[str] = Counter()
    while max(counts.values(), default=0) < 80:
        take(order, waiting, taken)
        counts[taken[-1].client] += 1
        for one, other in combinations(weights, 2):
            lead = abs(counts[one] / weights[one] - counts[other] / weights[other])
            assert lead <= 1 / weights[one] + 1 / weights[other] + 1e-9
