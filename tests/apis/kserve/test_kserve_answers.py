"""Answers at KServe's paths: JSON, KServe's errors, and binary CloudEvents."""

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.base.causes import Cause

PATHS = ("/v1/models/noop:predict", "/v1/models/noop:explain")
EVENT = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "cam/1", "ce-type": "frame"}


async def opened(start: Start, body: bytes = b'{"predictions": [1]}', **part: object) -> OpenEndpoints:
    model = FakeModel()
    model.behave = lambda call: call.part(body, **part)
    return await start(FakeServing([model]))


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_json(start: Start, path: str) -> None:
    answer = await (await opened(start)).request("POST", path, data=b"{}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert not any(name.lower().startswith("ce-") for name in answer.headers)


async def test_what_is_no_object_keeps_its_type_open(start: Start) -> None:
    answer = await (await opened(start, b"text")).request("POST", PATHS[0], data=b"{}")
    assert "Content-Type" not in answer.headers


async def test_an_event_is_answered_with_an_event(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = await opened(start)
    headers = (await endpoints.request("POST", PATHS[0], data=b"{}", headers=EVENT)).headers
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-type"] == "io.kserve.inference.response"
    assert headers["ce-source"] == "io.kserve.inference.noop"
    assert headers["ce-id"] not in ("", "7")
    monkeypatch.setenv("CE_SOURCE", "own")
    monkeypatch.setenv("CE_TYPE", "own.type")
    headers = (await endpoints.request("POST", PATHS[0], data=b"{}", headers=EVENT)).headers
    assert (headers["ce-source"], headers["ce-type"]) == ("own", "own.type")


async def test_a_failure_is_told_in_kserves_words(start: Start) -> None:
    def fail(call: Submitted) -> None:
        call.fail(Cause.worker_died)

    model = FakeModel()
    model.behave = fail
    endpoints = await start(FakeServing([model]))
    answer = await endpoints.request("POST", PATHS[0], data=b"{}")
    assert (answer.status, list(answer.json())) == (500, ["error"])


async def test_models_are_listed(serving: OpenEndpoints) -> None:
    answer = await serving.request("GET", "/v2/models")
    assert (answer.status, answer.json()) == (200, {"models": ["noop"]})
