"""When a canary rises, is promoted, or is rolled back: no clock, no server."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torchserve_py.features.traffic.answer_times import RecentRequests, Record
from torchserve_py.features.traffic.canary import Canary, Phase, Verdict, judge
from torchserve_py.features.traffic.traffic_body import CanaryRules, read_body, read_shadow_rules

RULES = CanaryRules(version="2", steps=[5, 50], min_requests=10, max_failure_increase=0.1, max_latency_ratio=2)


def record(succeeded: int, failed: int, seconds: float) -> Record:
    """Return a record with answers that took equally long, ``seconds`` in all."""
    made = Record(failed)
    for _ in range(succeeded):
        made.count(seconds / succeeded)
    return made


STEADY = record(100, 0, 1.0)  # 10 ms each


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (STEADY, record(9, 0, 0.09), Verdict.unknown),
        (STEADY, record(10, 0, 0.1), Verdict.good),
        (STEADY, record(10, 0, 0.3), Verdict.worse),  # three times as slow
        (STEADY, record(10, 1, 0.1), Verdict.good),
        (STEADY, record(10, 2, 0.1), Verdict.worse),
        (STEADY, record(0, 2, 0.0), Verdict.worse),  # no further answers among the first ten could mend it
        (STEADY, record(0, 1, 0.0), Verdict.unknown),
        (record(50, 50, 0.5), record(5, 5, 0.05), Verdict.good),  # the old version fails as often
        (record(0, 0, 0.0), record(10, 0, 9.0), Verdict.good),  # nothing to compare with
    ],
)
def test_verdicts(old: Record, new: Record, verdict: Verdict) -> None:
    found = judge(RULES, old, new)
    assert found.verdict is verdict
    assert found.why


@pytest.mark.parametrize(("slow", "verdict"), [(1, Verdict.good), (2, Verdict.worse), (0, Verdict.good)])
def test_a_slow_tail_is_worse_although_the_mean_is_not(slow: int, verdict: Verdict) -> None:
    old, new = record(1000, 0, 10.0), record(100 - slow, 0, (100 - slow) / 100)
    for _ in range(slow):
        new.count(0.03)
    rules = RULES.model_copy(update={"max_quantile_ratio": 2.5})
    found = judge(rules, old, new)
    assert (found.verdict, "99 % of the answers take up to" in found.why) == (verdict, True)
    # Too few answers tell nothing of a hundredth of them.
    assert judge(rules, old, record(99, 0, 0.99)).verdict is Verdict.good
    assert "99 %" not in judge(rules, old, record(99, 0, 0.99)).why
    # The quantile is one that users choose.
    half = rules.model_copy(update={"quantile": 0.5, "max_quantile_ratio": 1.1, "max_latency_ratio": 1000.0})
    assert judge(half, old, record(10, 0, 0.2)).verdict is Verdict.worse


@given(some.lists(some.floats(1e-5, 100), min_size=200, max_size=300), some.floats(0.5, 0.99))
def test_quantiles_are_right_to_a_few_percent(times: list[float], share: float) -> None:
    made = Record()
    for each in times:
        made.count(each)
    found = made.quantile(share)
    exact = sorted(times)[math.ceil(share * len(times) - 1e-9) - 1]
    assert found is not None
    assert found == pytest.approx(exact, rel=0.026)


def test_a_window_slides_and_keeps_the_fewest_requests() -> None:
    recent = RecentRequests(seconds=10, fewest=3)
    for second in range(20):
        recent.count(second, 0.1 if second % 2 else None)
    recent.forget(20)
    assert (recent.record.failed, recent.record.succeeded) == (5, 5)
    assert recent.record.mean == pytest.approx(0.1)
    recent.forget(28)
    assert recent.record.requests == 3
    recent.forget(1000)  # there are no younger ones
    assert (recent.record.failed, recent.record.succeeded) == (1, 2)
    assert recent.record.quantile(0.5) == pytest.approx(0.1, rel=0.026)
    for _ in range(3):
        recent.count(1000.5, 0.2)
    recent.forget(1001)
    assert (recent.record.requests, recent.record.failed) == (3, 0)
    assert recent.record.mean == pytest.approx(0.2)


def test_a_good_canary_rises_step_by_step_and_is_promoted() -> None:
    canary = Canary(RULES, "1")
    assert canary.weights == {"1": 95, "2": 5}
    canary = canary.after(Verdict.unknown)
    assert canary.weights == {"1": 95, "2": 5}
    canary = canary.after(Verdict.good)
    assert canary.weights == {"1": 50, "2": 50}
    canary = canary.after(Verdict.good)
    assert (canary.phase, canary.weights) == (Phase.promoted, {})
    assert canary.after(Verdict.worse) == canary


def test_a_worse_one_is_rolled_back_at_any_step() -> None:
    for canary in (Canary(RULES, "1"), Canary(RULES, "1").after(Verdict.good)):
        assert canary.after(Verdict.worse).phase is Phase.rolled_back
        assert canary.after(Verdict.worse).weights == {}


@given(
    some.lists(some.sampled_from(Verdict), max_size=40),
    some.lists(some.integers(1, 100), min_size=1, max_size=20, unique=True),
)
def test_whatever_is_found_the_share_never_falls_before_the_end_and_the_end_is_final(
    verdicts: list[Verdict], steps: list[int]
) -> None:
    canary = Canary(CanaryRules(version="2", steps=sorted(steps)), "1")
    share, ended = 0, None
    for verdict in verdicts:
        if canary.phase is Phase.rising:
            assert sum(canary.weights.values()) == 100
            assert canary.weights["2"] >= share
            share = canary.weights["2"]
        elif ended is not None:
            assert canary == ended
        ended = None if canary.phase is Phase.rising else canary
        canary = canary.after(verdict)
    if Verdict.worse not in verdicts:
        assert canary.phase is not Phase.rolled_back
    if verdicts.count(Verdict.good) < len(steps):
        assert canary.phase is not Phase.promoted


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "it must have weights or canary, and not both"),
        ({"weights": {"1": 50}, "canary": {"version": "2"}}, "and not both"),
        ({"weights": {"1": 50, "2": 49}}, "must add up to 100, and add up to 99"),
        ({"weights": {"1": "50", "2": 50}}, "weights.1: Input should be a valid integer, given '50'"),
        ({"weights": {}}, "weights: "),
        ({"weight": {"1": 100}}, "weight: Extra inputs are not permitted"),
        ({"canary": {"version": "2", "steps": [5, 5]}}, r"canary: steps must rise, and are \[5, 5\]"),
        ({"canary": {"version": "2", "steps": [0]}}, "canary.steps.0: "),
        ({"canary": {"version": "2", "interval": 5}}, "canary.interval: Extra inputs"),
        ({"canary": {}}, "canary.version: Field required"),
        ({"canary": {"version": "2", "quantile": "0.9"}}, "canary.quantile: Input should be a valid number"),
    ],
)
def test_what_is_wrong_with_a_body_is_told(body: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_body(body)


def test_numbers_of_a_shadow_are_numbers() -> None:
    assert read_shadow_rules({"version": "2", "percent": 5, "tolerance": 0}).percent == 5
    for name, value in (("percent", True), ("tolerance", "0.1")):
        with pytest.raises(ValueError, match=f"{name}: Input should be a valid number, given {value!r}"):
            read_shadow_rules({"version": "2", name: value})
