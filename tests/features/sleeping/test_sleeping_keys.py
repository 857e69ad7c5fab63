"""The key `sleep`: with what it makes no sense."""

import pytest

from torchserve_py.features.sleeping.sleeping_keys import SleepingKeys


@pytest.mark.parametrize(
    ("other", "value"),
    [
        ("continuousBatching", True),
        ("asyncCommunication", True),
        ("parallelLevel", 2),
        ("scaling", {"idleTimeoutSec": 60}),
    ],
)
def test_what_keeps_a_handler_from_sleeping_is_a_contradiction(other: str, value: object) -> None:
    given = {"sleep": True, "minWorkers": 0, other: value}
    ((names, problem),) = SleepingKeys.model_validate({"sleep": True}).contradictions(given)
    assert names == ("sleep", other)
    assert other in problem
    assert not list(SleepingKeys.model_validate({}).contradictions({other: value}))
    assert not list(SleepingKeys.model_validate({"sleep": True}).contradictions({"scaling": {"downAfterSec": 5}}))


def test_a_model_that_never_makes_room_is_doubted() -> None:
    keys = SleepingKeys.model_validate({"sleep": True})
    assert ["minWorkers is not 0" in each for each in keys.doubts({"sleep": True})] == [True]
    assert not list(keys.doubts({"sleep": True, "minWorkers": 0}))


def test_workers_prepare_only_for_what_is_asked() -> None:
    assert SleepingKeys.model_validate({"sleep": True}).for_worker(1) is True
    assert SleepingKeys.model_validate({}).for_worker(1) is None
