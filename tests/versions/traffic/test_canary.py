"""When a canary rises, is promoted, or is rolled back: no clock, no server."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torchserve_py.versions.traffic.canary import Canary, CanaryPhase, CanaryRules, CanaryVerdict
from torchserve_py.versions.traffic.traffic_body import read_body, read_shadow_rules
from torchserve_py.versions.traffic.version_record import VersionRecord

RULES = CanaryRules(version="2", steps=[5, 50])


@given(some.lists(some.floats(1e-5, 100), min_size=200, max_size=300), some.floats(0.5, 0.99))
def test_quantiles_are_right_to_a_few_percent(times: list[float], share: float) -> None:
    made = VersionRecord()
    for each in times:
        made.time(each)
    found = made.quantile(share)
    exact = sorted(times)[math.ceil(share * len(times) - 1e-9) - 1]
    assert found is not None
    assert found == pytest.approx(exact, rel=0.026)


def test_a_good_canary_rises_step_by_step_and_is_promoted() -> None:
    canary = Canary(RULES, "1")
    assert canary.weights == {"1": 95, "2": 5}
    canary = canary.after(CanaryVerdict.unknown)
    assert canary.weights == {"1": 95, "2": 5}
    canary = canary.after(CanaryVerdict.good)
    assert canary.weights == {"1": 50, "2": 50}
    canary = canary.after(CanaryVerdict.good)
    assert (canary.phase, canary.weights) == (CanaryPhase.promoted, {})
    assert canary.after(CanaryVerdict.worse) == canary


def test_a_worse_one_is_rolled_back_at_any_step() -> None:
    for canary in (Canary(RULES, "1"), Canary(RULES, "1").after(CanaryVerdict.good)):
        assert canary.after(CanaryVerdict.worse).phase is CanaryPhase.rolled_back
        assert canary.after(CanaryVerdict.worse).weights == {}


@given(
    some.lists(some.sampled_from(CanaryVerdict), max_size=40),
    some.lists(some.integers(1, 99), min_size=1, max_size=20, unique=True),
)
def test_whatever_is_found_the_share_never_falls_before_the_end_and_the_end_is_final(
    verdicts: list[CanaryVerdict], steps: list[int]
) -> None:
    canary = Canary(CanaryRules(version="2", steps=sorted(steps)), "1")
    share, ended = 0, None
    for verdict in verdicts:
        if canary.phase is CanaryPhase.rising:
            assert sum(canary.weights.values()) == 100
            assert canary.weights["2"] >= share
            share = canary.weights["2"]
        elif ended is not None:
            assert canary == ended
        ended = None if canary.phase is CanaryPhase.rising else canary
        canary = canary.after(verdict)
    if CanaryVerdict.worse not in verdicts:
        assert canary.phase is not CanaryPhase.rolled_back
    if verdicts.count(CanaryVerdict.good) < len(steps):
        assert canary.phase is not CanaryPhase.promoted


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
        (
            {"canary": {"version": "2", "steps": [50, 100]}},
            "leave 100 out: after the last step the version becomes the def",
        ),
        ({"canary": {"version": "2", "windowSec": 60}}, "windowSec is not used any more, leave it out: all requests"),
        ({"canary": {"version": "2", "metrics": [{"name": "x"}]}}, "metrics.0: it must have maxRatio or minRatio"),
        ({"canary": {"version": "2", "shadow": {"maxDifferent": 0}}}, "maxDifferent: Input should be greater than 0"),
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
