"""How many workers there are to be: each rule on its own, and all of them together on a simulated clock."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fleet.scaling.followed_load import FollowedLoad

from torchserve_py.base.causes import CloseReason, Reason
from torchserve_py.core.scheduling.demand import Demand, WorkerCounts
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.fleet.scaling.scaling import STARTING_LIMIT, Decision, Scaling, ScalingPolicy

POLICY = ScalingPolicy(target_wait=1.0, down_after=60.0, idle_timeout=300.0)


class Looks:
    """A policy that is asked once a second; as many workers are ready as are wanted, unless a test says otherwise."""

    def __init__(self, least: int = 1, most: int = 8, wanted: int = 1, policy: ScalingPolicy = POLICY) -> None:
        self.scaling = Scaling(policy, 0.0)
        self.least, self.most, self.wanted = least, most, wanted
        self.now = 0.0
        self.accepted = self.refused = 0

    def look(
        self,
        *,
        queued: int = 0,
        oldest_wait: float = 0.0,
        busy: float = 0.0,
        accepted: int = 0,
        refused: int = 0,
        bound: int = 0,
        givers: tuple[str, ...] = (),
        ready: int | None = None,
        failing: bool = False,
    ) -> Decision | None:
        self.now += 1.0
        self.accepted += accepted
        self.refused += refused
        demand = Demand(queued, oldest_wait, busy, self.accepted, self.refused, 1, (), bound, givers)
        ready = self.wanted if ready is None else ready
        decision = self.scaling.decide(
            demand, WorkerCounts(self.wanted, ready, failing, self.least, self.most), self.now
        )
        if decision is not None:
            self.wanted = decision.workers
        return decision

    def looks(self, seconds: int, **demand: float) -> list[Decision]:
        decisions = [self.look(**demand) for _ in range(seconds)]
        return [each for each in decisions if each is not None]


def test_the_number_doubles_as_long_as_the_wait_grows() -> None:
    looks = Looks()
    counts = [
        decision.workers
        for wait in (1.1, 2.1, 3.1, 4.1)
        if (decision := looks.look(queued=90, oldest_wait=wait, busy=looks.wanted))
    ]
    assert counts == [2, 4, 8]


def test_a_wait_up_to_the_target_changes_nothing() -> None:
    assert not Looks().looks(1000, queued=5, oldest_wait=1.0, busy=1.0)


def test_no_more_workers_than_jobs_could_use() -> None:
    looks = Looks(wanted=4)
    decision = looks.look(queued=2, oldest_wait=3.0, busy=3.0)
    assert decision is not None
    assert (decision.workers, decision.reason) == (5, Reason.waiting)
    assert decision.why == "2 requests wait, the oldest for 3.0 s"


def test_jobs_that_are_refused_since_they_would_be_late_bring_workers_although_none_waits_long() -> None:
    looks = Looks()
    assert looks.look(queued=5, oldest_wait=0.9, busy=1.0) is None
    decision = looks.look(queued=5, oldest_wait=0.9, busy=1.0, refused=20)
    assert decision is not None
    assert decision.workers == 2
    assert decision.why == ("5 requests wait, the oldest for 0.9 s; refused because they would have been too late: 20")
    assert not looks.looks(100, queued=5, oldest_wait=0.9, busy=2.0)


def test_a_job_that_only_its_own_busy_worker_could_run_brings_no_other() -> None:
    assert not Looks(wanted=2).looks(100, queued=1, oldest_wait=9.0, busy=1.0)


def test_a_queue_that_gets_shorter_brings_no_worker() -> None:
    looks = Looks()
    assert looks.look(queued=50, oldest_wait=5.0, busy=1.0)
    assert [looks.look(queued=40, oldest_wait=wait, busy=2.0) for wait in (4.5, 4.0, 3.0, 2.0)] == [None] * 4


def test_workers_that_load_keep_others_from_being_started_for_a_while() -> None:
    looks = Looks()
    assert looks.look(queued=50, oldest_wait=2.0, busy=1.0)
    wait = 2.0
    while looks.look(queued=50, oldest_wait=wait, busy=1.0, ready=1) is None:
        wait += 1.0
    assert wait - 2.0 == pytest.approx(STARTING_LIMIT - 1.0)
    assert looks.wanted == 4


def test_a_worker_that_dies_and_comes_back_is_waited_for() -> None:
    looks = Looks(wanted=2)
    assert [looks.look(queued=9, oldest_wait=wait, busy=1.0, ready=1) for wait in (1.5, 2.5, 3.5)] == [None] * 3


def test_nothing_is_added_while_a_worker_fails_to_load() -> None:
    assert not Looks(wanted=2).looks(1000, queued=50, oldest_wait=9.0, busy=1.0, failing=True)


def test_half_of_the_workers_go_at_most_and_only_after_a_calm_window() -> None:
    looks = Looks(least=1, most=8, wanted=8)
    decisions = [(decision := looks.look()) and (looks.now, decision.workers, decision.reason) for _ in range(250)]
    assert [each for each in decisions if each is not None] == [
        (60.0, 4, Reason.spare),
        (120.0, 2, Reason.spare),
        (180.0, 1, Reason.spare),
    ]


def test_busy_workers_stay() -> None:
    looks = Looks(wanted=4)
    looks.looks(60, busy=2.0)
    assert looks.wanted == 3  # 70 % of 3 are more than 2, of 2 they are less
    assert not looks.looks(1000, busy=2.0)


def test_one_long_wait_begins_the_window_anew() -> None:
    looks = Looks(wanted=2)
    looks.looks(59)
    assert not looks.look(queued=1, oldest_wait=2.0)
    assert not looks.looks(59)
    assert looks.look()


def test_a_worker_with_the_only_copy_of_a_state_stays_until_its_sequences_are_over() -> None:
    looks = Looks(least=0, wanted=2)
    assert not looks.looks(500, bound=2)
    assert looks.look(bound=1)
    assert looks.wanted == 1
    assert not looks.looks(1000, bound=1)
    assert looks.look(bound=0) == Decision(0, Reason.idle, "no request for 1502 s")


def test_a_worker_whose_sequences_can_move_goes_unless_it_is_the_last_one() -> None:
    looks = Looks(least=0, most=2, wanted=2)
    assert [decision.workers for decision in looks.looks(1000, bound=2, givers=("a", "b"))] == [1]


def test_a_worker_that_stays_since_its_sequences_cannot_move_is_asked_later_and_later() -> None:
    looks = Looks(wanted=2)
    asked = []
    for _ in range(1000):
        if looks.look(bound=2, givers=("a", "b")):
            asked.append(looks.now)
            looks.wanted = 2  # it has been put back
    assert [after - before for before, after in itertools.pairwise(asked)] == [60.0, 120.0, 240.0, 480.0]


def test_the_first_job_brings_the_first_worker() -> None:
    looks = Looks(least=0, wanted=0)
    assert not looks.looks(1000)
    assert looks.look(queued=1, accepted=1) == Decision(1, Reason.request, "1 request waits")


def test_none_is_started_where_none_is_allowed() -> None:
    assert not Looks(least=0, most=0, wanted=0).looks(100, queued=1)


def test_the_last_worker_goes_when_nothing_was_asked_for() -> None:
    looks = Looks(least=0)
    looks.looks(200)
    assert not looks.look(accepted=1)  # it was begun and answered between two looks
    assert not looks.looks(299)
    assert looks.look() == Decision(0, Reason.idle, "no request for 300 s")


def test_a_request_that_takes_longer_than_a_model_may_be_idle_is_not_interrupted() -> None:
    assert not Looks(least=0).looks(1000, busy=1.0)


def test_a_model_that_loads_for_longer_than_it_may_be_idle_is_not_unloaded_before_it_is_loaded() -> None:
    looks = Looks(least=0, wanted=0)
    assert looks.look(queued=1)
    assert not looks.looks(1000, ready=0)
    assert not looks.looks(299)
    assert looks.look() is not None


def test_a_model_that_fails_to_load_is_given_up_until_the_next_request() -> None:
    looks = Looks(least=0, wanted=1)
    assert [each.workers for each in looks.looks(300, ready=0, failing=True)] == [0]


def test_a_down_that_was_wrong_is_tried_again_later_and_later() -> None:
    looks = Looks(wanted=2)
    downs = []
    for _ in range(3000):
        short = looks.wanted == 1
        wait = looks.look(queued=5, oldest_wait=2.0, busy=1.0) if short else looks.look(busy=0.6)
        if wait is not None and wait.reason is Reason.spare:
            downs.append(looks.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(downs)]
    assert [round(gap, -1) for gap in gaps] == [120, 240, 480, 960, 960]


# All rules together, with the scheduler, workers that take time to load, and clients.

LOADS = st.lists(
    st.tuples(st.floats(0.0, 6.0), st.integers(5, 90)), min_size=1, max_size=4
)  # jobs per second, for so many seconds


@st.composite
def followed(draw: st.DrawFn) -> FollowedLoad:
    """A load that rises and falls; each job takes the same time, a worker does one at a time."""
    least = draw(st.integers(0, 2))
    most = least + draw(st.integers(1, 4))
    policy = ScalingPolicy(
        target_wait=draw(st.sampled_from((0.2, 1.0, 4.0))),
        down_after=draw(st.sampled_from((5.0, 20.0))),
        idle_timeout=draw(st.sampled_from((4.0, 40.0))),
    )
    run = FollowedLoad(
        policy,
        Policy(queue_size=100_000, ahead=draw(st.booleans())),
        least=least,
        most=most,
        step=draw(st.sampled_from((0.01, 0.3, 1.0))),
        load_time=draw(st.sampled_from((0.0, 2.0, 25.0))),
    )
    run.offer(draw(LOADS))
    return run


@given(followed())
@settings(max_examples=examples(20))
def test_whatever_the_load(run: FollowedLoad) -> None:
    run.until_answered()
    assert all(run.least <= count <= run.most for _, count in run.changes), "the limits hold"
    ups = [at for (at, count), (_, before) in zip(run.changes[1:], run.changes, strict=False) if count > before]
    fewer = [change for change, (_, before) in zip(run.changes[1:], run.changes, strict=False) if change[1] < before]
    downs, spared = [at for at, _ in fewer], [at for at, count in fewer if count]  # the last one goes by another rule
    calm = min(run.policy.down_after, run.policy.idle_timeout if run.least == 0 else math.inf)
    for down in downs:
        assert all(not 0 <= down - up < calm - 0.001 for up in ups), "none goes soon after one came"
        assert all(not 0 < other - down < calm - 0.001 for other in spared), "they go slowly"
    run.rest(run.policy.idle_timeout + 17 * run.policy.down_after * 4)
    assert run.wanted == run.least, "without load there are as few as may be"
    assert run.up == run.least


@given(
    st.lists(st.tuples(st.floats(0.0, 120.0), st.integers(1, 12), st.floats(0.5, 4.0)), max_size=25),
    st.integers(0, 2),
    st.sampled_from((0.3, 2.0)),
    st.booleans(),
)
@settings(max_examples=examples(20))
def test_no_state_is_lost_because_a_worker_was_not_needed(
    sequences: list[tuple[float, int, float]], least: int, step: float, durable: bool
) -> None:
    policy = SequencePolicy(max_idle=6.0, queue_size=100, max_sequences=1000, durable=durable)
    run = FollowedLoad(
        ScalingPolicy(target_wait=0.5, down_after=3.0, idle_timeout=4.0),
        Policy(sequences=policy),
        least=least,
        most=least + 3,
        step=step,
        load_time=1.0,
    )
    for number, (at, steps, pause) in enumerate(sequences):
        run.offer_sequence(f"s{number}", at, steps, pause)
    run.until_answered()
    run.rest(1000.0)
    assert run.wanted == run.least
    assert set(run.ended) <= {CloseReason.suspended if durable else CloseReason.idle, CloseReason.idle}


@given(st.integers(0, 2), st.integers(1, 5), st.sampled_from((0.1, 0.5)), st.sampled_from((0.0, 3.0, 25.0)))
@settings(max_examples=examples(20))
def test_an_overload_that_lasts_brings_all_workers(least: int, more: int, step: float, load_time: float) -> None:
    run = FollowedLoad(
        ScalingPolicy(), Policy(queue_size=100_000), least=least, most=least + more, step=step, load_time=load_time
    )
    doublings = math.ceil(math.log2(least + more)) + 1
    run.offer([(1.5 * (least + more) / step, 20 + int(doublings * (max(STARTING_LIMIT, load_time) + 3)))])
    run.run_to(10 + doublings * (max(STARTING_LIMIT, load_time) + 3))
    assert run.wanted == run.most


@given(st.floats(0.2, 3.8), st.sampled_from((0.2, 0.9)))
@settings(max_examples=examples(20))
def test_a_steady_load_brings_few_changes(workers_needed: float, step: float) -> None:
    """Whatever its size, also between two numbers of workers: the logarithm of the time, not its multiple."""
    run = FollowedLoad(
        ScalingPolicy(down_after=10.0), Policy(queue_size=100_000), least=1, most=5, step=step, load_time=1.0
    )
    run.offer([(workers_needed / step, 1000)])
    run.run_to(300.0)
    early = len(run.changes)
    run.run_to(1000.0)
    assert len(run.changes) - early <= 2 * 700 / 160 + 2
