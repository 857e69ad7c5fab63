"""What workers refuse steps with, the server knows."""

import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.refused_steps import cause_of
from torchserve_py.endpoints.failures import failure_of_job
from ts.protocol.messages import HELD_ELSEWHERE, SequenceNews
from ts.sequences.steps import rules, step
from ts.sequences.steps.rules import Reason

#: The answers of handlers and devices, which have words of their own.
OWN_WORDS = {"handler_error"}
REASONS = {
    name: value
    for module in (rules, step)
    for name, value in vars(module).items()
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and isinstance(value[1], str)
}


@pytest.mark.parametrize("name", sorted(name for name, (_, cause) in REASONS.items() if cause not in OWN_WORDS))
def test_each_refusal_of_a_worker_has_a_status_and_words(name: str) -> None:
    reason: Reason = REASONS[name]
    cause = cause_of(SequenceNews(reason[1]), durable=True)
    assert cause is not None
    assert cause == (Cause.sequence_moved if reason[1] == HELD_ELSEWHERE else reason[1])
    failure = failure_of_job(cause, "m", None, "s")
    assert failure.status == reason[0]
    assert failure.message
