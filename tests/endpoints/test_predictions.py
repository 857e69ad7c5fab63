"""Predictions and explanations over HTTP."""

import asyncio
import uuid
from dataclasses import replace

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.base.causes import Cause

NO_WORKER = (
    " has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence"
    " inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


async def test_body_and_headers_reach_the_model_as_they_were_sent(serving):
    headers = {"Content-Type": "application/json; charset=utf-8", "X-Mixed-Case": "Grüße", "explain": "maybe"}
    answer = await serving.request("POST", "/predictions/noop?a=1", data=b'{"a": 1}', headers=headers)
    assert (answer.status, answer.body) == (200, b'{"a": 1}')
    call = serving.registry.model.calls[0]
    assert call.body == b'{"a": 1}'
    assert call.content_type == "application/json; charset=utf-8"
    assert (b"X-Mixed-Case", "Grüße".encode()) in call.headers
    assert call.header_dict["explain"] == "False"  # what the server says comes last and wins
    assert call.header_dict["url_path"] == ""


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
async def test_every_method_predicts(serving, method):
    answer = await serving.request(method, "/predictions/noop", data=b"x")
    assert (answer.status, answer.body) == (200, b"x")


async def test_a_redirection_by_the_handler_is_counted_as_no_failure(serving):
    serving.registry.model.behave = lambda call: call.part(b"", status=303, headers=[("location", "/elsewhere")])
    answer = await serving.request("POST", "/predictions/noop", allow_redirects=False)
    assert (answer.status, answer.headers["location"]) == (303, "/elsewhere")
    assert serving.metrics.counts == (0, 0, 0)
    assert serving.metrics.http_requests["POST", "/predictions/{model_name}", 303] == 1


async def test_a_request_without_a_body_has_an_empty_one(serving):
    answer = await serving.request("GET", "/predictions/noop")
    assert (answer.status, answer.body) == (200, b"")
    assert serving.registry.model.calls[0].body == b""
    assert serving.registry.model.calls[0].content_type == ""


@pytest.mark.parametrize(
    ("path", "explain", "url_path"),
    [
        ("/predictions/noop", "False", ""),
        ("/predictions/noop/", "False", ""),
        ("/predictions/noop/1.0", "False", ""),
        ("/predictions/noop/1.0/v1/chat/completions", "False", "v1/chat/completions"),
        ("/predictions/noop/1.0/caf%C3%A9", "False", "café"),
        ("/explanations/noop", "True", ""),
        ("/explanations/noop/1.0/a/b", "True", "a/b"),
    ],
)
async def test_path_becomes_headers(serving, path, explain, url_path):
    answer = await serving.request("POST", path, data=b"x")
    assert answer.status == 200
    headers = serving.registry.model.calls[0].header_dict
    assert (headers["explain"], headers["url_path"]) == (explain, url_path)


async def test_the_version_chooses_the_model(start):
    old, new = FakeModel("m", "1"), FakeModel("m", "2")
    serving = await start(FakeServing([old, new]))
    await serving.request("POST", "/predictions/m", data=b"x")
    await serving.request("POST", "/predictions/m/2", data=b"x")
    assert (len(old.calls), len(new.calls)) == (1, 1)
    assert (old.calls[0].by_default, new.calls[0].by_default) == (True, False)


async def test_standard_headers_and_no_content_type_that_nobody_set(serving):
    connection = await serving.raw(b"POST /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    lines = (await connection.head()).split("\r\n")
    assert lines[0] == "http/1.1 200 ok"
    names = [line.split(":")[0] for line in lines[1:] if line]
    assert sorted(names) == sorted(
        ["pragma", "cache-control", "expires", "connection", "x-request-id", "date", "content-length"]
    )
    assert "pragma: no-cache" in lines
    assert "cache-control: no-cache; no-store, must-revalidate, private" in lines
    assert "expires: thu, 01 jan 1970 00:00:00 utc" in lines
    assert "connection: keep-alive" in lines
    assert "x-request-id: job-0" in lines
    await connection.close()


async def test_handler_chooses_status_reason_and_headers(serving):
    serving.registry.model.behave = lambda call: call.part(
        b"<b>", status=299, reason="Quite All Right", headers=[("content-type", "text/html"), ("X-Other", "é")]
    )
    async with serving.client.post(f"{serving.address()}/predictions/noop") as response:
        assert (response.status, response.reason) == (299, "Quite All Right")
        assert response.headers["content-type"] == "text/html"
        assert response.headers["X-Other"] == "é"
        assert await response.read() == b"<b>"


async def test_handler_cannot_break_the_framing(serving):
    forbidden = [("Content-Length", "999"), ("transfer-encoding", "chunked"), ("Connection", "close"), ("X-Ok", "1")]
    serving.registry.model.behave = lambda call: call.part(b"four", headers=forbidden)
    answer = await serving.request("POST", "/predictions/noop")
    assert answer.body == b"four"
    assert answer.headers.getall("content-length") == ["4"]
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["X-Ok"] == "1"


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"headers": [("X-Evil", "a\r\nSet-Cookie: b")]}, "X-Evil"),
        ({"headers": [("X Evil", "a")]}, "X Evil"),
        ({"headers": [("", "a")]}, "''"),
        ({"status": 99}, "99"),
        ({"status": 100}, "100"),
        ({"status": 700}, "700"),
        ({"reason": "Fine\r\nSet-Cookie: b"}, "reason"),
        ({"more": True, "headers": [("X-Evil", "a\nb")]}, "X-Evil"),
    ],
)
async def test_what_http_does_not_allow_is_an_error_that_names_it(serving, part, named):
    serving.registry.model.behave = lambda call: call.part(b"x", **part)
    answer = await serving.request("POST", "/predictions/noop")
    assert answer.status == 500
    assert "Set-Cookie" not in answer.headers
    assert answer.json()["type"] == "InternalServerException"
    assert named in answer.json()["message"]
    assert serving.metrics.counts == (0, 0, 1)


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body(serving, status):
    serving.registry.model.behave = lambda call: call.part(b"dropped", status=status)
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head = await connection.head()
    assert str(status) in head
    assert "content-length" not in head
    assert await connection.rest() == b""


async def test_head_gets_the_head_alone(serving):
    serving.registry.model.behave = lambda call: call.part(b"four")
    connection = await serving.raw(b"HEAD /predictions/noop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert "content-length: 4" in await connection.head()
    assert await connection.rest() == b""


@pytest.mark.parametrize(
    ("path", "status", "kind", "message"),
    [
        ("/predictions/foo", 404, "ModelNotFoundException", "Model not found: foo"),
        (
            "/predictions/noop/9",
            404,
            "ModelVersionNotFoundException",
            "Model version: 9 does not exist for model: noop",
        ),
        (
            "/predictions",
            404,
            "ResourceNotFoundException",
            "Requested resource is not found, please refer to API document.",
        ),
        (
            "/explanations/",
            404,
            "ResourceNotFoundException",
            "Requested resource is not found, please refer to API document.",
        ),
        ("//x", 404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document."),
        ("/models", 404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document."),
    ],
)
async def test_unknown_things_are_not_found(serving, path, status, kind, message):
    answer = await serving.request("POST", path, data=b"x")
    assert answer.status == status
    expected = f'{{\n  "code": {status},\n  "type": "{kind}",\n  "message": "{message}"\n}}\n'
    assert answer.body.decode() == expected
    assert answer.headers["content-type"] == "application/json"
    assert uuid.UUID(answer.headers["x-request-id"]).version == 4
    assert serving.metrics.counts == (0, 1, 0)


async def test_options_is_not_a_prediction(serving):
    answer = await serving.request("OPTIONS", "/predictions/noop")
    assert (answer.status, answer.json()["info"]["title"]) == (200, "RESTful API for: noop")
    assert serving.registry.model.calls == []


@pytest.mark.parametrize("cause", ["no_worker", "queue_full", "sequence_queue_full", "sequence_capacity"])
@pytest.mark.parametrize(("path", "named"), [("", 'Model "noop"'), ("/1.0", 'Model "noop" Version 1.0"')])
async def test_overload_is_told_at_once_with_torchserves_text(serving, cause, path, named):
    serving.registry.model.behave = lambda call: call.fail(Cause(cause))
    answer = await serving.request("POST", f"/predictions/noop{path}")
    assert answer.status == 503
    assert answer.json() == {"code": 503, "type": "ServiceUnavailableException", "message": named + NO_WORKER}
    assert answer.headers["ts-error-cause"] == cause
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["x-request-id"] == "job-0"


async def test_nobody_is_asked_to_add_workers_that_the_server_adds_itself(serving):
    model = serving.registry.model
    model.config = replace(model.config, follows_load=True)
    model.behave = lambda call: call.fail(Cause.no_worker)
    message = (await serving.request("POST", "/predictions/noop")).json()["message"]
    assert message.startswith(
        'Model "noop" has no worker to serve inference request. The server adds workers as the load asks for;'
        " GET /models/noop tells why one does not start. If this is a sequence"
    )


async def test_memory_that_runs_out_is_told_where_it_is_the_cause(serving):
    model = serving.registry.model
    model.lacks_memory = True
    model.behave = lambda call: call.fail(Cause.no_worker)
    message = (await serving.request("POST", "/predictions/noop")).json()["message"]
    assert message == f'Model "noop"{NO_WORKER}. Its workers do not start, because memory runs out.'
    model.behave = lambda call: call.fail(Cause.queue_full)
    assert (await serving.request("POST", "/predictions/noop")).json()["message"] == f'Model "noop"{NO_WORKER}'


@pytest.mark.parametrize(
    ("cause", "status", "kind", "overloaded"),
    [
        ("draining", 503, "ServiceUnavailableException", True),
        ("overloaded", 503, "ServiceUnavailableException", True),
        ("unregistered", 503, "ServiceUnavailableException", False),
        ("sequence_expired", 410, "SequenceExpiredException", False),
        ("sequence_lost", 410, "SequenceLostException", False),
        ("outcome_unknown", 503, "ServiceUnavailableException", False),
        ("worker_died", 500, "InternalServerException", False),
        ("response_timeout", 500, "InternalServerException", False),
        ("client_timeout", 408, "RequestTimeoutException", False),
    ],
)
async def test_every_cause_has_its_answer(serving, cause, status, kind, overloaded):
    serving.registry.model.behave = lambda call: call.fail(Cause(cause))
    answer = await serving.request("POST", "/predictions/noop")
    assert (answer.status, answer.json()["type"]) == (status, kind)
    assert answer.headers["ts-error-cause"] == cause
    assert ("Retry-After" in answer.headers) == overloaded
    if status == 500:
        assert answer.json()["message"] == "Worker died."
    assert answer.headers.get("ts_request_id") == ("job-0" if cause == "outcome_unknown" else None)


async def test_a_row_that_failed_is_told_as_the_handler_said(serving):
    serving.registry.model.behave = lambda call: call.part(status=503, error="Prediction failed")
    answer = await serving.request("POST", "/predictions/noop")
    assert answer.status == 503
    assert answer.json() == {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    assert answer.headers["ts-error-cause"] == "handler_error"
    assert "Retry-After" not in answer.headers


async def test_errors_leave_the_connection_open(serving):
    connection = await serving.raw(b"GET /predictions/foo HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    for _ in range(2):
        head = await connection.head()
        assert "404 not found" in head
        assert "connection: keep-alive" in head
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        await connection.reader.readexactly(length)
    await connection.close()


async def test_an_unforeseen_error_is_answered_too(serving, caplog):
    def behave(call: Submitted) -> None:
        raise LookupError("surprise")

    serving.registry.model.behave = behave
    answer = await serving.request("POST", "/predictions/noop")
    assert answer.json() == {"code": 500, "type": "LookupError", "message": "surprise"}
    assert "POST '/predictions/noop' failed." in caplog.text


async def test_a_client_that_goes_away_cancels_its_job(serving):
    serving.registry.model.behave = lambda call: None
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        await serving.registry.model.submitted.wait()
        assert not serving.registry.model.cancelled.is_set()
        await connection.close()
        await serving.registry.model.cancelled.wait()


async def test_an_answered_job_is_not_cancelled(serving):
    await serving.request("POST", "/predictions/noop", data=b"x")
    assert not serving.registry.model.cancelled.is_set()


async def test_pipelined_requests_are_answered_in_order(serving):
    request = b"POST /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    connection = await serving.raw(request + b"\r\n1" + request + b"\r\n2" + request + b"Connection: close\r\n\r\n3")
    text = (await connection.rest()).decode()
    assert [block[0] for block in text.split("\r\n\r\n")[1:]] == ["1", "2", "3"]
    assert text.count("connection: keep-alive") == 2
    assert text.count("connection: close") == 1


async def test_http_1_0(serving):
    head = b"POST /predictions/noop HTTP/1.0\r\nContent-Length: 1\r\n"
    connection = await serving.raw(head + b"\r\n1")
    assert "connection: close" in await connection.head()
    assert await connection.rest() == b"1"
    connection = await serving.raw(head + b"Connection: keep-alive\r\n\r\n1")
    assert "connection: keep-alive" in await connection.head()
    await connection.close()


async def test_a_large_answer_arrives_whole(serving):
    body = bytes(range(256)) * 20000
    answer = await serving.request("POST", "/predictions/noop", data=body)
    assert answer.body == body


async def test_a_reader_that_stalls_is_dropped(start, caplog):
    serving = await start(default_response_timeout=0.2)
    serving.registry.model.behave = lambda call: call.part(b"x" * 50_000_000)
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(60):
        while "the client has read nothing for 0.2 seconds" not in caplog.text:
            await asyncio.sleep(0.01)
    with pytest.raises(ConnectionError):
        await connection.rest()


@pytest.mark.parametrize(("sent", "priority"), [("1", 1), (" 12 ", 12), ("0", 0), (str(2**64 - 1), 2**64 - 1)])
async def test_a_header_says_how_urgent_a_request_is(serving, sent, priority):
    answer = await serving.request("POST", "/predictions/noop", data=b"x", headers={"Ts_request_priority": sent})
    assert answer.status == 200
    assert serving.registry.model.calls[0].priority == priority


@pytest.mark.parametrize("name", ["ts_request_timeout", "X-Request-Timeout-Ms"])
@pytest.mark.parametrize("path", ["/predictions/noop", "/v2/models/noop/infer", "/v1/models/noop:predict"])
async def test_a_header_says_how_long_the_client_waits(serving, name, path):
    answer = await serving.request("POST", path, data=b"{}", headers={name: " 5000 "})
    assert answer.status == 200
    assert 4.0 < serving.registry.model.calls[0].answer_in <= 5.0


async def test_the_first_of_two_time_limits_counts(serving):
    headers = {"x-request-timeout-ms": "9", "ts_request_timeout": "5000"}
    await serving.request("POST", "/predictions/noop", data=b"x", headers=headers)
    assert serving.registry.model.calls[0].answer_in > 4.0


@pytest.mark.parametrize("headers", [{}, {"ts_request_timeout": "0"}])
async def test_a_client_need_not_say_how_long_it_waits(serving, headers):
    await serving.request("POST", "/predictions/noop", data=b"x", headers=headers)
    assert serving.registry.model.calls[0].answer_in is None


@pytest.mark.parametrize("sent", ["", "-1", "1.5", "1s", "²", "9" * 13])
async def test_a_time_limit_that_is_none_is_refused(serving, sent):
    answer = await serving.request("POST", "/predictions/noop", data=b"x", headers={"x-request-timeout-ms": sent})
    assert answer.status == 400
    assert "Header x-request-timeout-ms: " in answer.json()["message"]
    assert "milliseconds" in answer.json()["message"]
    assert not serving.registry.model.calls


@pytest.mark.parametrize("sent", ["", "-1", "1.5", "high", "²", str(2**64), "9" * 5000])
async def test_a_priority_that_is_none_is_refused(serving, sent):
    answer = await serving.request("POST", "/predictions/noop", data=b"x", headers={"ts_request_priority": sent})
    assert answer.status == 400
    assert "Header ts_request_priority: " in answer.json()["message"]
    assert not serving.registry.model.calls
