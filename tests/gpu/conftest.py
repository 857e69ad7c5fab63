"""Tests on a GPU: ``pytest -m gpu``. Skipped, with the reason, where there is none."""

import pytest
from tests.gpu.machine import DEVICE, ON_CPU, why_not


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip all tests of this folder where there is no GPU."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def only_cuda(gpu: None) -> None:
    """Skip a test that means nothing on the CPU."""
    if ON_CPU:
        pytest.skip("it means nothing on the CPU")


@pytest.fixture
def device() -> str:
    """The device, by torch's name."""
    return DEVICE
