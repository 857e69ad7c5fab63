"""The messages are TorchServe's to the letter: clients and dashboards match them."""

import pytest

from torchserve_py.core.serving import errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.ModelNotFound("m"), "Model not found: m"),
        (errors.ModelVersionNotFound("m", "2"), "Model version: 2 does not exist for model: m"),
        (errors.DefaultVersionNotFound("m", "2"), "Model version 2 does not exist for model m"),
        (errors.InvalidModel("Model name is not defined."), "Model name is not defined."),
        (errors.VersionConflict("m", "1.0"), "Model version 1.0 is already registered for model m"),
        (errors.DefaultVersionInUse("m"), "Cannot remove default version for model m"),
        (errors.UnregisterTimeout("m"), "Timed out while cleaning resources: m"),
        (errors.WorkersFailed("m", "1.0"), "Failed to start workers for model m version: 1.0"),
        (errors.NotEnoughDevices("m", 4), "No enough gpu devices for model:m parallelLevel:4"),
        (
            errors.NoDescribeWorker("m"),
            'Model "m" has no worker to serve describe request. Please use scale workers API to add workers.',
        ),
    ],
)
def test_message(error: errors.ModelError, message: str) -> None:
    assert str(error) == message


def test_a_version_missing_for_set_default_is_a_missing_version() -> None:
    assert isinstance(errors.DefaultVersionNotFound("m", "2"), errors.ModelVersionNotFound)
