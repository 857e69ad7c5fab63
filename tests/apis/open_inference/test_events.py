"""Streams of responses are server-sent events."""

from tests.apis.open_inference.behaviours import stream_of
from tests.endpoints.fake_serving import Submitted

from torchserve_py.base.causes import Cause


async def test_each_response_is_an_event_and_the_end_is_no_event(serving):
    serving.registry.model.behave = stream_of(b'{"a":1}', b'{"a":2}')
    for endpoint in ("infer_stream", "generate_stream"):
        answer = await serving.request(
            "POST", f"/v2/models/noop/{endpoint}", data=b"x", headers={"Accept-Encoding": "gzip"}
        )
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-cache" in answer.headers["cache-control"]
        assert "content-encoding" not in answer.headers
        assert answer.body == b'data: {"a":1}\n\ndata: {"a":2}\n\n'


async def test_a_model_with_one_response_gives_one_event(serving):
    answer = await serving.request("POST", "/v2/models/noop/infer_stream", data=b'{"a":1}')
    assert answer.body == b'data: {"a":1}\n\n'


async def test_an_error_within_a_stream_is_its_last_event(serving):
    serving.registry.model.behave = stream_of(b'{"a":1}', error="broken")
    answer = await serving.request("POST", "/v2/models/noop/infer_stream", data=b"x")
    assert answer.body == b'data: {"a":1}\n\ndata: {"error":"broken"}\n\n'


async def test_a_worker_that_dies_within_a_stream_is_its_last_event(serving):
    def behave(call: Submitted) -> None:
        call.part(b'{"a":1}', more=True)
        call.fail(Cause.worker_died)

    serving.registry.model.behave = behave
    answer = await serving.request("POST", "/v2/models/noop/infer_stream", data=b"x")
    error = b'{"error":"The worker that ran the request has ended; the log of the model may say more."}'
    assert answer.body == b'data: {"a":1}\n\ndata: ' + error + b"\n\n"


async def test_an_error_before_the_first_event_has_its_status(serving):
    serving.registry.model.behave = stream_of(error="broken")
    answer = await serving.request("POST", "/v2/models/noop/infer_stream", data=b"x")
    assert (answer.status, answer.json()) == (500, {"error": "broken"})
    assert answer.headers["content-type"] == "application/json"


async def test_http_1_0_gets_events_until_the_connection_closes(serving):
    serving.registry.model.behave = stream_of(b'{"a":1}')
    connection = await serving.raw(b"POST /v2/models/noop/infer_stream HTTP/1.0\r\ncontent-length: 1\r\n\r\nx")
    assert "transfer-encoding" not in await connection.head()
    assert await connection.rest() == b'data: {"a":1}\n\n'
    await connection.close()
