"""The key `sleep`: with what it makes no sense."""

from collections.abc import Mapping

import pytest

from torchserve_py.fleet.memory_budget.budget_keys import BudgetKeys


@pytest.mark.parametrize(
    ("other", "value"),
    [
        ("continuousBatching", True),
        ("asyncCommunication", True),
        ("torchrun", {"nproc-per-node": 2}),
        ("parallelType", "tp"),
        ("maxWorkers", 2),
        ("scaling", {"idleTimeoutSec": 60}),
    ],
)
def test_what_keeps_a_handler_from_sleeping_is_a_contradiction(other: str, value: object) -> None:
    given = {"sleep": True, "minWorkers": 0, other: value}
    ((names, problem),) = BudgetKeys.model_validate({"sleep": True}).contradictions(given)
    assert names == ("sleep", other)
    assert other in problem
    assert not list(BudgetKeys.model_validate({}).contradictions({other: value}))


@pytest.mark.parametrize(
    "others",
    [{"scaling": {"downAfterSec": 5}}, {"parallelType": "custom", "parallelLevel": 2}, {"maxWorkers": 1}],
)
def test_what_does_not_is_none(others: Mapping[str, object]) -> None:
    assert not list(BudgetKeys.model_validate({"sleep": True}).contradictions(others))


def test_a_model_that_never_makes_room_is_doubted() -> None:
    keys = BudgetKeys.model_validate({"sleep": True})
    assert ["minWorkers is not 0" in each for each in keys.doubts({"sleep": True})] == [True]
    assert ["pin is true" in each for each in keys.doubts({"minWorkers": 0, "pin": True})] == [True]
    assert not list(keys.doubts({"sleep": True, "minWorkers": 0}))


def test_workers_prepare_only_for_what_is_asked() -> None:
    assert BudgetKeys.model_validate({"sleep": True}).for_worker(1) is True
    assert BudgetKeys.model_validate({}).for_worker(1) is None
