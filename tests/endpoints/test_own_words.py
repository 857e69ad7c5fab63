"""What a job without an answer comes to in the server's own words."""

import pytest
from tests.endpoints.fake_serving import FakeModel

from torchserve_py.base.causes import Cause
from torchserve_py.endpoints.failures import failure_of_job
from torchserve_py.endpoints.own_words import in_own_words


def told(cause: Cause, *, worker_end: str = "", load_failure: str = "") -> tuple[int, str]:
    model = FakeModel("m", stateful=True)
    model.load_failure = load_failure
    served = model.served
    failure = in_own_words(failure_of_job(cause, "m", None, "s", served), cause, served, worker_end)
    assert failure.cause == cause
    return failure.status, failure.message


@pytest.mark.parametrize("cause", list(Cause))
def test_torchserves_words_are_for_its_own_paths(cause: Cause) -> None:
    _, message = told(cause)
    assert "Worker died" not in message
    assert "scale workers API" not in message


def test_the_message_says_what_happened() -> None:
    assert told(Cause.response_timeout) == (504, "The model gave no response within 120 s (responseTimeout).")
    text = "The worker that ran the request exited with code 3; the log of the model may say more."
    assert told(Cause.worker_died, worker_end="exited with code 3") == (500, text)
    text = "The model 'm' cannot be loaded: RuntimeError: no weights"
    assert told(Cause.no_worker, load_failure="RuntimeError: no weights") == (503, text)
