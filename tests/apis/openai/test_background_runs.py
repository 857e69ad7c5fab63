"""Steps of responses that are made in the background: which refusals are for good."""

import json

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.openai import background_runs
from torchserve_py.apis.openai.background_runs import BackgroundResponse, StepRefused
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.endpoints.sequences import SequenceHeaders


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    monkeypatch.setattr(background_runs, "_PAUSES", (0.0, 0.0))
    return FakeModel(stateful=True)


def response(model: FakeModel) -> BackgroundResponse:
    headers = SequenceHeaders(server_settings().model_construct())
    serving = FakeServing([model])
    return BackgroundResponse("resp_1", "conv_1", serving.get("noop"), serving, headers, None)


async def test_what_is_gone_is_refused_with_its_cause_and_not_asked_for_again(model: FakeModel) -> None:
    model.behave = lambda call: call.fail(Cause.sequence_expired)
    made = response(model)
    with pytest.raises(StepRefused) as refused:
        await made.step(made.operation("get_events"))
    assert (refused.value.failure.status, refused.value.failure.cause) == (410, "sequence_expired")
    assert len(model.calls) == 1


@pytest.mark.parametrize("cause", [Cause.rate_limited, Cause.sequence_moved, Cause.worker_died, Cause.queue_full])
async def test_what_may_pass_is_asked_for_again(model: FakeModel, cause: Cause) -> None:
    answers = iter((None, {"events": "", "over": True}))

    def behave(call: Submitted) -> None:
        answer = next(answers)
        if answer is None:
            call.fail(cause)
        else:
            call.part(json.dumps(answer).encode())

    model.behave = behave
    made = response(model)
    assert (await made.step(made.operation("get_events")))["over"]
    model.behave = lambda call: call.fail(cause)
    with pytest.raises(StepRefused) as refused:
        await made.step(made.operation("get_events"))
    assert refused.value.failure.cause == cause.value
    assert len(model.calls) == 2 + 3
