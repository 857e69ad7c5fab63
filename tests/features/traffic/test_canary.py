"""When a canary rises, is promoted, or is rolled back: no clock, no server."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torchserve_py.features.traffic.canary import Canary, Phase, Record, Verdict, judge
from torchserve_py.features.traffic.traffic_body import CanaryRules, read_body

RULES = CanaryRules(version="2", steps=[5, 50], min_requests=10, max_failure_increase=0.1, max_latency_ratio=2)
STEADY = Record(100, 0, 1.0)  # 10 ms each


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (STEADY, Record(9, 0, 0.09), Verdict.unknown),
        (STEADY, Record(10, 0, 0.1), Verdict.good),
        (STEADY, Record(10, 0, 0.3), Verdict.worse),  # three times as slow
        (STEADY, Record(10, 1, 0.1), Verdict.good),
        (STEADY, Record(10, 2, 0.1), Verdict.worse),
        (STEADY, Record(0, 2, 0.0), Verdict.worse),  # no further answers among the first ten could mend it
        (STEADY, Record(0, 1, 0.0), Verdict.unknown),
        (Record(50, 50, 0.5), Record(5, 5, 0.05), Verdict.good),  # the old version fails as often
        (Record(0, 0, 0.0), Record(10, 0, 9.0), Verdict.good),  # nothing to compare with
    ],
)
def test_verdicts(old: Record, new: Record, verdict: Verdict) -> None:
    found = judge(RULES, old, new)
    assert found.verdict is verdict
    assert found.why


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
    ],
)
def test_what_is_wrong_with_a_body_is_told(body: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_body(body)
