"""The endpoints of workflows, with a workflow whose nodes are functions of a fake model."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack
from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log
from torchserve_py.core.jobs.parts import Exceeded
from torchserve_py.core.serving.serving import RegisterResult


@pytest.fixture
async def serving(start: Start, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[OpenEndpoints]:
    """Open endpoints with the workflow ``w`` of two nodes, both run by the model ``noop``, which may be stateful."""
    (tmp_path / "spec.yaml").write_text("dag: {first: [second]}")
    (tmp_path / "code.py").write_text("")
    pack(PackOptions("w", str(tmp_path / "spec.yaml"), str(tmp_path / "code.py"), export_path=str(tmp_path)))
    models = FakeServing([FakeModel(stateful=getattr(request, "param", False))])
    models.register_result = RegisterResult("noop", "1.0", 1, 1, pending=False)
    serving = await start(models, access_log=True)
    registered = await serving.request("POST", "/workflows?url=w.war", endpoint="management")
    assert registered.status == 200, registered.body
    yield serving
    access_log.flush()


async def test_a_request_runs_through_the_nodes_and_is_logged_with_its_id(
    serving: OpenEndpoints, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ACCESS_LOG")
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"x", "application/json")
    assert len(serving.registry.model.calls) == 2
    access_log.flush()
    *_, record = [each for each in caplog.records if each.name == "ACCESS_LOG"]
    assert vars(record)["request_id"] == answer.headers["x-request-id"]
    assert vars(record)["route"] == "/wfpredict/{workflow_name}"


async def test_all_nodes_are_as_urgent_as_the_request_and_part_of_its_trace(serving: OpenEndpoints) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"ts_request_priority": "2", "ts_request_timeout": "60000", "x-request-id": "r", "traceparent": trace}
    answer = await serving.request("POST", "/wfpredict/w", data=b"x", headers=headers)
    assert answer.status == 200, answer.body
    for depth, call in enumerate(serving.registry.model.calls):
        assert (call.call.priority, call.call.depth) == (2, depth)
        assert call.call.answer_in == pytest.approx(60, abs=30)
        assert (call.call.header("x-request-id"), call.call.header("traceparent")) == ("r", trace)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ts_request_priority", "high", "ts_request_priority"),
        ("ts_request_deadline_ms", "20", "ts_request_deadline_ms or ts_request_period_ms: a workflow keeps none"),
    ],
)
async def test_what_a_workflow_does_not_keep_is_refused(
    serving: OpenEndpoints, name: str, value: str, told: str
) -> None:
    answer = await serving.request("POST", "/wfpredict/w", data=b"x", headers={name: value})
    assert (answer.status, told in answer.json()["message"]) == (400, True)
    assert serving.registry.model.calls == []


async def test_a_client_that_leaves_cancels_the_node_that_runs(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    model.behave = lambda call: None
    connection = await serving.raw(b"POST /wfpredict/w HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
    async with asyncio.timeout(60):
        await model.submitted.wait()
        await connection.close()
        await model.cancelled.wait()
    assert len(model.calls) == 1


async def test_what_fails_is_told_with_the_cause_of_the_node(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.fail(Cause.queue_full)
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"], answer.headers["retry-after"]) == (500, "queue_full", "1")
    assert answer.json()["message"].startswith('Error executing first: Model "noop"')
    model.behave = lambda call: call.part(status=503, error="out of glue")
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"]) == (500, "handler_error")
    assert answer.json()["message"] == "Error executing first: out of glue"
    serving.registry.registered.clear()
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"]) == (500, "unregistered")
    assert answer.json()["message"] == "Error executing first: Model not found: noop"


@pytest.mark.parametrize("serving", [True], indirect=True)
@pytest.mark.parametrize(
    ("cause", "status", "retry_after"),
    [
        (Cause.queue_full, 503, "1"),
        (Cause.sequence_lost, 410, None),
        (Cause.step_gap, 409, None),
        (Cause.sequence_moved, 409, "1"),
        (Cause.rate_limited, 429, "7"),
        (Cause.outcome_unknown, 503, None),
    ],
)
async def test_a_step_of_a_sequence_is_refused_as_by_the_model(
    serving: OpenEndpoints, cause: Cause, status: int, retry_after: str | None
) -> None:
    def fail_at_second(call: Submitted) -> None:
        if len(serving.registry.model.calls) < 2:
            call.part(call.body)
            return
        if cause is Cause.rate_limited:
            call.call.exceeded = Exceeded(cause, "Slower, please.", 7)
        call.fail(cause)

    serving.registry.model.behave = fail_at_second
    answer = await serving.request("POST", "/wfpredict/w", data=b"x", headers={"ts_request_sequence_id": "s"})
    told = answer.headers
    assert (answer.status, told["ts-error-cause"], told.get("retry-after")) == (status, cause.value, retry_after)
    assert told["ts_request_sequence_id"] == "s"
    assert answer.json()["message"].startswith("Error executing second: ")
    if cause is Cause.rate_limited:
        assert answer.json()["message"] == "Error executing second: Slower, please."
    first, second = (dict(call.headers) for call in serving.registry.model.calls)
    assert first["ts_request_id"] == second["ts_request_id"]
    expected = first["ts_request_id"] if cause is Cause.outcome_unknown else None
    assert told.get("ts_request_id") == expected, "by which the client asks again"


@pytest.mark.parametrize("reason", ["BadRequestException", ""])
async def test_what_the_start_node_cannot_read_is_the_clients_mistake(serving: OpenEndpoints, reason: str) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.part(status=415, reason=reason, error="send UTF-8")
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.json()["message"]) == (415, "Error executing first: send UTF-8")
    assert answer.headers["ts-error-cause"] == "invalid_request"
    assert len(model.calls) == 1

    def refuse_second(call: Submitted) -> None:
        if len(model.calls) == 2:
            call.part(b"y")
        else:
            call.part(status=400, reason="BadRequestException", error="no y")

    model.behave = refuse_second  # what another node has made is not
    answer = await serving.request("POST", "/wfpredict/w", data=b"x")
    assert (answer.status, answer.json()["message"]) == (500, "Error executing second: no y")


async def test_a_start_node_that_is_a_function_gets_a_body_without_its_encoding(serving: OpenEndpoints) -> None:
    packed, headers = gzip.compress(b"hello"), {"Content-Encoding": "gzip"}
    model = serving.registry.model
    for declared, body in (({}, packed), ({"function": {}}, b"hello")):
        model.declared = declared
        answer = await serving.request("POST", "/wfpredict/w", data=packed, headers=headers)
        assert (answer.status, answer.body) == (200, body)
    broken = await serving.request("POST", "/wfpredict/w", data=b"x", headers=headers)
    assert (broken.status, "is not what its Content-Encoding says" in broken.json()["message"]) == (400, True)


async def test_options_runs_no_workflow_and_describes_it(serving: OpenEndpoints) -> None:
    assert (await serving.request("POST", "/wfpredict/any")).status == 404
    assert (await serving.request("OPTIONS", "/wfpredict/any")).status == 404
    answer = await serving.request("OPTIONS", "/wfpredict/w")
    assert list(answer.json()["paths"]) == ["/wfpredict/w"]
    assert (await serving.request("TRACE", "/wfpredict/w")).status == 405
    assert serving.registry.model.calls == []
