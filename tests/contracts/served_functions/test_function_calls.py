"""Calls between functions of a file, in the server: which model gets them, as whose request, and what they come to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.base.causes import Cause
from torchserve_py.contracts.served_functions.function_calls import calls_of
from torchserve_py.core.archive.file_function import FileFunction
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.function_call import CallOutcome, ModelCall
from torchserve_py.core.serving.serving import ServedModel

FILE = "/models/search.py"


class Function(FakeModel):
    """A model of a function, with what was submitted to it."""

    def __init__(self, name: str, file: str = FILE, *, stateful: bool = False) -> None:
        super().__init__(name, stateful=stateful)
        self.function = FileFunction(file, name)
        self.requests: list[Call] = []

    @property
    def served(self) -> ServedModel:
        return replace(super().served, function=self.function)

    def submit(self, call: Call) -> None:
        self.requests.append(call)
        super().submit(call)


async def called(models: list[FakeModel], name: str = "embed", **request: Any) -> CallOutcome:
    (outcome,) = await streamed(models, name, **request)
    return outcome


async def streamed(models: list[FakeModel], name: str = "embed", **request: Any) -> list[CallOutcome]:
    call = ModelCall(name, "text/plain", "*/*", b"hello")
    make = calls_of(FakeServing(models), 10)(FileFunction(FILE, "search"))
    caller: Call = request.pop("caller", Call((), b""))
    outcomes = [each async for each in make(caller, call._replace(**request))]
    assert [each.more for each in outcomes] == [True] * (len(outcomes) - 1) + [False]
    return outcomes


async def test_a_call_is_a_request_of_the_callers_client() -> None:
    embed = Function("embed")
    headers = [(b"X-Request-ID", b"r1"), (b"Authorization", b"Bearer k"), ("traceparent", "00-1-2-01")]
    outcome = await called([embed], caller=Call(headers, b"", client="key 7", priority=2))
    assert outcome == CallOutcome(200, "", b"hello")
    (request,) = embed.requests
    passed_on = [(b"X-Request-ID", b"r1"), ("traceparent", "00-1-2-01")]
    assert [*request.headers] == [*passed_on, ("accept", "*/*"), (":call-depth", "1")]
    assert (request.client, request.priority, request.via, request.by_default) == ("key 7", 2, "call", False)


@pytest.mark.parametrize(
    ("models", "status", "told"),
    [
        ([Function("other")], 404, "Model not found: embed"),
        ([FakeModel("embed")], 404, "the model embed is not the function of that name in the same file"),
        ([Function("embed", "/elsewhere/search.py")], 404, "the model embed is not the function of that name"),
        ([Function("embed", stateful=True)], 400, "it has a state"),
    ],
)
async def test_only_a_function_of_the_same_file_is_called(models: list[FakeModel], status: int, told: str) -> None:
    outcome = await called(models)
    assert outcome.status == status
    assert outcome.error is not None
    assert told in outcome.error
    assert not any(model.calls for model in models)


async def test_calls_within_calls_end() -> None:
    embed = Function("embed")
    request: Call = Call((), b"")
    for depth in range(1, 17):
        assert (await called([embed], caller=request)).error is None
        request = embed.requests[-1]
        assert request.depth == depth
    outcome = await called([embed], caller=request)
    assert (outcome.status, len(embed.requests)) == (508, 16)


async def test_a_large_body_is_refused() -> None:
    outcome = await called([Function("embed")], body=b"x" * 11)
    assert (outcome.status, outcome.error) == (413, "the values have 11 bytes; a request may have 10")


async def test_what_a_call_fails_with_is_told() -> None:
    embed = Function("embed")
    embed.behave = lambda call: call.part(status=400, error="text: too short")
    assert await called([embed]) == CallOutcome(400, "", b"", "text: too short")
    embed.behave = lambda call: call.part(b"no", status=418)
    assert await called([embed]) == CallOutcome(418, "", b"", "no")
    embed.behave = lambda call: call.part(b"no", more=True)
    embed.behave = lambda call: call.fail(Cause.response_timeout)
    late = await called([embed])
    assert (late.status, late.error) == (504, "The model gave no response within 120 s (responseTimeout).")


async def test_the_parts_of_a_stream_come_one_by_one_and_a_failure_ends_it() -> None:
    embed = Function("embed")

    def stream(call: Submitted) -> None:
        call.part(b"one", more=True, headers=[("content-type", "text/plain")])
        call.part(b"two", more=True)
        call.fail(Cause.worker_died)

    embed.behave = stream
    *parts, last = await streamed([embed])
    assert [(each.content_type, each.body) for each in parts] == [("text/plain", b"one"), ("text/plain", b"two")]
    assert (last.status, last.error is None) == (500, False)


async def test_a_call_that_is_given_up_is_cancelled() -> None:
    embed = Function("embed")
    embed.behave = lambda call: None
    task = asyncio.create_task(called([embed]))
    await embed.submitted.wait()
    task.cancel()
    await asyncio.wait([task])
    assert embed.cancelled.is_set()
