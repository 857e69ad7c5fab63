"""Limits with which no job could run are refused where they are set: no scheduler is made with them."""

import pytest
from tests.core.plans.test_effective import effective

from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping
from torchserve_py.core.plans.config import InvalidModelConfig, parse_model_config
from torchserve_py.core.serving.errors import BadParameter


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("batchSize", 0, "an integer from 1"),
        ("maxBatchDelay", -1, "an integer from 0 (milliseconds)"),
        ("jobQueueSize", -1, "an integer from 0"),
        ("concurrencyTarget", 0, "an integer from 1"),
        ("sequenceMaxIdleMSec", -1, "an integer from 0 (milliseconds)"),
        ("sequenceTimeoutMSec", -1, "an integer from 0 (milliseconds)"),
        ("maxSequenceJobQueueSize", 0, "an integer from 1"),
        ("maxNumSequence", 0, "an integer from 1"),
        ("deadlineSafety", 91, "an integer from 0 to 90 (percent)"),
    ],
)
def test_a_models_configuration(key: str, value: int, right: str) -> None:
    with pytest.raises(InvalidModelConfig) as refused:
        parse_model_config(parse_yaml_mapping(f"{key}: {value}".encode()))
    assert refused.value.problems == (f"line 1: {key} is {value} (int), it must be {right}",)


@pytest.mark.parametrize(("name", "value", "least"), [("batch_size", 0, 1), ("max_batch_delay", -1, 0)])
def test_a_registration(name: str, value: int, least: int) -> None:
    with pytest.raises(BadParameter, match=f"^Parameter {name} is {value}, it must be an integer from {least} to "):
        effective({name: value})


@pytest.mark.parametrize(("percent", "share"), [(None, 0.1), (0, 0.0), (25, 0.25)])
def test_how_much_time_guarantees_leave_free(percent: int | None, share: float) -> None:
    yaml = {"sequence_batching": True, "sequence_max_idle_ms": 1000, "deadline_safety": percent}
    assert effective(yaml=yaml).policy().deadline_safety == share


def test_zero_leaves_the_limit_to_the_server_or_means_none() -> None:
    yaml = {"job_queue_size": 0, "sequence_batching": True, "sequence_max_idle_ms": 1000, "sequence_timeout_ms": 0}
    policy = effective(yaml=yaml).policy()
    assert policy.queue_size == 100
    assert policy.sequences is not None
    assert policy.sequences.timeout is None
