"""A policy that cannot work is refused where it is made."""

import pytest

from torchserve_py.scheduling.policy import Policy, SequencePolicy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"max_batch_delay": -0.1}, "max_batch_delay is -0.1; it must be at least 0 seconds"),
        ({"queue_size": 0}, "queue_size is 0; it must be at least 1"),
    ],
)
def test_policy(fields, message):
    with pytest.raises(ValueError, match=message):
        Policy(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_idle": 0}, "max_idle is 0; it must be more than 0 seconds"),
        ({"max_idle": 1, "timeout": 0}, "timeout is 0; it must be None or more than 0 seconds"),
        ({"max_idle": 1, "queue_size": 0}, "queue_size is 0; it must be at least 1"),
        ({"max_idle": 1, "max_sequences": 0}, "max_sequences is 0; it must be at least 1"),
    ],
)
def test_sequence_policy(fields, message):
    with pytest.raises(ValueError, match=message):
        SequencePolicy(**fields)
