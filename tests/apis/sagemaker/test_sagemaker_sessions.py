"""Sessions at SageMaker's paths that have had no request yet, and models that keep no sequences."""

import asyncio
import gzip
from dataclasses import replace
from typing import Any

import pytest
from tests.endpoints.conftest import Answer, OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.model_spec import ModelSpec
from ts.protocol.messages import SAGEMAKER_CLOSE

SESSION = "X-Amzn-SageMaker-Session-Id"
NEW = "X-Amzn-SageMaker-New-Session-Id"
PATH = "/models/tally/invoke"


def stateful(**config: Any) -> FakeModel:
    model = FakeModel("tally", stateful=True)
    model.config = replace(model.config, **config)
    return model


async def opened(endpoints: OpenEndpoints) -> dict[str, str]:
    """Open a session without running the handler; return the header that continues it."""
    answer = await endpoints.request("POST", PATH, data=b'{"requestType": "NEW_SESSION"}')
    assert answer.status == 200
    return {SESSION: answer.headers[NEW].partition(";")[0]}


async def test_a_session_that_is_not_used_expires(start: Start) -> None:
    model = stateful(sequence_timeout_ms=200)
    endpoints = await start(FakeServing([model]))
    used, unused = await opened(endpoints), await opened(endpoints)
    assert (await endpoints.request("POST", PATH, data=b"x", headers=used)).status == 200
    await asyncio.sleep(0.3)
    answer = await endpoints.request("POST", PATH, data=b"x", headers=unused)
    assert (answer.status, "session not found" in answer.json()["message"]) == (400, True)
    assert len(model.calls) == 1


async def test_a_request_that_names_two_sessions_is_refused(start: Start) -> None:
    endpoints = await start(FakeServing([stateful()]))
    one, other = await opened(endpoints), await opened(endpoints)
    answer = await endpoints.request("POST", PATH, data=b"x", headers=[*one.items(), *other.items()])
    assert (answer.status, f"Header {SESSION} is given more than once" in answer.json()["message"]) == (400, True)


async def test_a_session_whose_first_request_was_refused_is_still_there(start: Start) -> None:
    def refuse_once(call: Submitted) -> None:
        if len(model.calls) == 1:
            model.known_sequences.clear()
            call.fail(Cause.sequence_capacity)
        else:
            call.part(b"ok")

    model = stateful()
    model.behave = refuse_once
    endpoints = await start(FakeServing([model]))
    session = await opened(endpoints)
    assert (await endpoints.request("POST", PATH, data=b"x", headers=session)).status == 503
    assert (await endpoints.request("POST", PATH, data=b"x", headers=session)).body == b"ok"
    assert [call.starts_sequence for call in model.calls] == [True, True]


async def test_of_several_first_requests_one_begins_the_session(start: Start) -> None:
    def answer_both(_: Submitted) -> None:
        for call in model.calls if len(model.calls) == 2 else ():
            call.part(b"ok")

    model = stateful()
    model.behave = answer_both
    endpoints = await start(FakeServing([model]))
    session = await opened(endpoints)
    both = (endpoints.request("POST", PATH, data=b"x", headers=session) for _ in range(2))
    assert [answer.status for answer in await asyncio.gather(*both)] == [200, 200]
    assert [call.starts_sequence for call in model.calls] == [True, False]


async def test_a_refusal_tells_of_no_new_session(start: Start) -> None:
    model = stateful()
    model.behave = lambda call: call.fail(Cause.sequence_capacity)
    endpoints = await start(FakeServing([model]))
    answer = await endpoints.request("POST", PATH, data=b"x", headers={SESSION: "NEW_SESSION"})
    assert (answer.status, NEW in answer.headers) == (503, False)


async def test_a_model_without_sequences_keeps_sessions_itself(start: Start) -> None:
    model = FakeModel("tally")
    model.behave = lambda call: call.part(call.body, headers=[(NEW, "mine; Expires=2030-01-01T00:00:00Z")])
    endpoints = await start(FakeServing([model]))
    body = b'{"requestType": "NEW_SESSION"}'
    answer = await endpoints.request("POST", PATH, data=body, headers={SESSION: "NEW_SESSION"})
    assert (answer.body, answer.headers[NEW]) == (body, "mine; Expires=2030-01-01T00:00:00Z")
    assert model.calls[0].header_dict[SESSION] == "NEW_SESSION"


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_session_whose_last_step_fails_tells_why_and_stays_open(start: Start, is_durable: bool) -> None:
    model = stateful()
    model.is_durable = is_durable  # what is in memory another server may have, too
    model.known_sequences.add("mine")
    model.behave = lambda call: call.fail(Cause.sequence_store)
    endpoints = await start(FakeServing([model]))
    answer = await endpoints.request("POST", PATH, data=b'{"requestType": "CLOSE"}', headers={SESSION: "mine"})
    assert (answer.status, answer.headers["ts-error-cause"]) == (503, "sequence_store")
    assert answer.headers["ts_request_sequence_id"] == "mine"
    assert "X-Amzn-SageMaker-Closed-Session-Id" not in answer.headers


async def test_a_request_for_a_model_that_could_not_be_loaded_is_no_mistake_of_the_client(start: Start) -> None:
    endpoints = await start(FakeServing([], not_loaded=[ModelSpec("broken", "/models/broken")]))
    for path in ("/invocations", "/invocations-bidirectional-stream", "/execution-parameters"):
        method = "POST" if path == "/invocations" else "GET"
        answer = await endpoints.request(method, path, data=b"" if method == "GET" else b"x")
        assert answer.status == 503, path
        assert answer.json()["message"] == 'The start-up model "broken" could not be loaded; the log says why.'
        assert answer.headers["ts-error-cause"] == "no_worker"
    endpoints = await start(FakeServing([]))
    assert (await endpoints.request("POST", "/invocations", data=b"x")).status == 400


@pytest.mark.parametrize("contract", ["sagemaker", "torchserve"])
async def test_compressed_requests_open_and_close_sessions(start: Start, contract: str) -> None:
    async def send(body: bytes, session: str = "", encoding: str = "gzip") -> Answer:
        headers = {"Content-Encoding": encoding, **({SESSION: session} if session else {})}
        return await endpoints.request("POST", PATH, data=body, headers=headers)

    model = stateful()
    model.contract = contract
    endpoints = await start(FakeServing([model]))
    answer = await send(gzip.compress(b'{"requestType": "NEW_SESSION"}'))
    assert answer.status == 200
    session = answer.headers[NEW].partition(";")[0]
    step = gzip.compress(b"x" * 1000)
    assert (await send(step, session)).status == 200
    assert model.calls[0].body == (step if contract == "torchserve" else b"x" * 1000)
    answer = await send(gzip.compress(b'{"requestType": "CLOSE"}'), session)
    assert (answer.status, answer.headers["X-Amzn-SageMaker-Closed-Session-Id"]) == (200, session)
    assert [each.protocol for each in model.calls[1:]] == [SAGEMAKER_CLOSE], "no handler gets it"


async def test_encodings_that_only_a_handler_knows_go_to_it(start: Start) -> None:
    model = stateful()
    endpoints = await start(FakeServing([model]))
    for encoding, body in (("br", b"?"), ("gzip", b"not gzip")):
        headers = {"Content-Encoding": encoding, SESSION: "NEW_SESSION"}
        answer = await endpoints.request("POST", PATH, data=body, headers=headers)
        assert (answer.status, NEW in answer.headers) == (200, True)
        assert model.calls.pop().body == body
