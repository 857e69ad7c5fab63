"""The scheduler has a copy of a limit that it cannot import."""

from torchserve_py.core.scheduling import sequence_source
from ts.sequences.steps import sequence_limits


def test_the_scheduler_remembers_as_many_tokens_as_the_stores() -> None:
    assert sequence_source.MOST_EARLIER_TOKENS == sequence_limits.MOST_EARLIER_TOKENS
