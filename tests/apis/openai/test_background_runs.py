"""Responses that are made in the background: which refusals are for good, and what a run waits for."""

import itertools
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted, worker_status

from torchserve_py.apis.openai import background_runs
from torchserve_py.apis.openai.background_runs import BackgroundResponse, StepRefused
from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.sequences import SequenceHeaders
from ts.apis.openai.openai_calls import CALL_HEADER, RUN_HEADER, ResponsesCall


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


class Generating:
    """Plays a worker that makes a response, and is gone when it is asked for the ``missing`` operation at first."""

    def __init__(self, model: FakeModel, missing: str) -> None:
        self.model, self.missing = model, missing
        self.runs = 0
        self.appended: list[dict[str, Any]] = []
        model.behave = self._behave

    def _behave(self, call: Submitted) -> None:
        operation = ResponsesCall.decoded(call.header_dict[CALL_HEADER]).operation
        if operation == self.missing or not self.model.workers[0].ready:
            self.missing = ""
            self.model.workers = [worker_status(ready=False)]
            call.fail(Cause.no_worker)
        elif operation == "claim_run":
            self.runs += 1
            call.part(json.dumps({"run": self.runs, "made": [], "tokens": []}).encode())
        elif operation == "run_response":
            call.part(b'{"pieces": [], "tokens": [1], "end": {"reason": "stop", "usage": null}}')
        else:
            self.appended.append(json.loads(call.body))
            call.part(b'{"over": true}')


@pytest.mark.parametrize("missing", ["run_response", "append_part"])
async def test_a_run_goes_on_however_long_its_model_loads(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    looks = itertools.count()

    def is_loaded(_: ServedModel) -> bool:
        if next(looks) == 20:
            model.workers = [worker_status()]
        return model.workers[0].ready

    monkeypatch.setattr(background_runs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(FakeServing, "is_loaded", lambda _, served: is_loaded(served))
    made, worker = response(model), Generating(model, missing)
    await made.run(lambda: None)
    assert (worker.runs, [each["tokens"] for each in worker.appended]) == (2, [[1]])


async def test_a_run_ends_with_the_load_of_its_model(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_runs, "_LOOK_SECONDS", 0.0)
    made, worker = response(model), Generating(model, "run_response")
    model.load_failure = "no such file"
    with pytest.raises(StepRefused, match="no worker"):
        await made.run(lambda: None)
    assert worker.runs == 1
    model.load_failure = ""
    model.config = replace(model.config, startup_timeout=0)
    with pytest.raises(StepRefused, match="no worker"):
        await response(model).run(lambda: None)


@pytest.mark.parametrize("cause", [Cause.no_worker, Cause.sequence_queue_full])
async def test_a_stream_stays_open_while_its_model_loads(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch, start: Start, cause: Cause
) -> None:
    events = iter(['{"type": "a"}', None, None, None, '{"type": "b"}'])
    looks: list[bool] = []

    def behave(call: Submitted) -> None:
        asked = ResponsesCall.decoded(call.header_dict[CALL_HEADER])
        if asked.operation == "create_response":
            call.part(json.dumps({"id": asked.item}).encode(), headers=[(RUN_HEADER, "true")])
        elif asked.operation == "claim_run":
            call.part(b'{"over": true}')
        elif (event := next(events)) is None:
            looks[:] = [False] * 5
            call.fail(cause)
        else:
            assert not looks, "it is asked for when the model is loaded"
            call.part(json.dumps({"events": f"data: {event}\n\n", "last": 0, "over": "b" in event}).encode())

    monkeypatch.setattr(background_runs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(FakeServing, "is_loaded", lambda *_: looks.pop() if looks else True)
    model.config = replace(model.config, plugin_keys=PluginKeys((OpenAIKeys.model_validate({"openai": True}),)))
    model.behave = behave
    serving = await start(FakeServing([model]))
    body = {"model": "noop", "input": "hi", "background": True, "stream": True}
    async with httpx.AsyncClient(base_url=str(serving.address()), timeout=60) as client:
        answer = await client.post("/v1/responses", json=body)
    assert answer.text == 'data: {"type": "a"}\n\ndata: {"type": "b"}\n\n'
