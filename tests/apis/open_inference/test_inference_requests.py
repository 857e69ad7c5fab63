"""`infer` and its relatives: what goes to the worker, and what comes back."""

import gzip
import json
import zlib

import pytest
from backports import zstd
from tests.apis.open_inference.behaviours import INFER, fails_with, stream_of
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.base.causes import Cause
from ts.protocol.messages import OPEN_INFERENCE_REST


@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "application/x-www-form-urlencoded"])
async def test_a_request_goes_to_the_worker_as_it_came(serving, content_type):
    headers = {"X-User": "me"} | ({} if content_type is None else {"Content-Type": content_type})
    answer = await serving.request("POST", INFER, data=b"anything", headers=headers)
    assert (answer.status, answer.body) == (200, b"anything")
    [call] = serving.registry.model.calls
    assert (call.body, call.protocol, call.content_type) == (b"anything", OPEN_INFERENCE_REST, None)
    assert call.header_dict["X-User"] == "me"
    assert ":endpoint" not in call.header_dict
    assert call.by_default


async def test_names_are_percent_decoded_and_versions_any_text(start):
    model = FakeModel("my model", "v 1")
    serving = await start(FakeServing([model]))
    assert (await serving.request("POST", "/v2/models/my%20model/versions/v%201/infer", data=b"x")).status == 200
    assert not model.calls[0].by_default


@pytest.mark.parametrize("endpoint", ["infer_stream", "generate", "generate_stream"])
async def test_the_worker_is_told_of_other_endpoints(serving, endpoint):
    await serving.request("POST", f"/v2/models/noop/{endpoint}", data=b"x")
    assert serving.registry.model.calls[0].header_dict[":endpoint"] == endpoint


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("zstd", zstd.compress),
        ("identity", bytes),
    ],
)
async def test_compressed_requests(serving, encoding, pack):
    body = b"text" * 50_000
    headers = {"Content-Encoding": encoding, "Accept-Encoding": "identity"}
    answer = await serving.request("POST", INFER, data=pack(body), headers=headers)
    assert answer.body == body


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"no", 400),
        ("gzip", gzip.compress(b"x" * 99, mtime=0)[:-9], 400),
        ("gzip", gzip.compress(b"x", mtime=0) + b"y", 400),
        ("br", b"x", 415),
        ("zstd", b"no", 400),
        ("zstd", zstd.compress(b"x" * 99)[:-9], 400),
        ("zstd", zstd.compress(b"x") + b"y", 400),
        ("zstd", zstd.compress(b"0" * 10_000_000), 413),
        ("gzip", gzip.compress(b"0" * 10_000_000), 413),
    ],
)
async def test_compressed_requests_that_are_refused(serving, encoding, body, status):
    answer = await serving.request("POST", INFER, data=body, headers={"Content-Encoding": encoding})
    assert (answer.status, set(answer.json())) == (status, {"error"})
    assert not serving.registry.model.calls


@pytest.mark.parametrize(
    ("accepts", "encoding"),
    [
        ("gzip", "gzip"),
        ("gzip, deflate, br", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("identity", None),
        ("identity, gzip;q=0.5", None),
        ("gzip;q=x", None),
    ],
)
async def test_compressed_responses(serving, accepts, encoding):
    for size, expected in ((2000, encoding), (20, None), (200_000, encoding)):
        body = b"x" * size
        answer = await serving.request("POST", INFER, data=body, headers={"Accept-Encoding": accepts})
        assert answer.headers.get("content-encoding") == expected
        unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[expected]
        assert unpack(answer.body) == body


@pytest.mark.parametrize(
    ("cause", "status", "error"),
    [
        (Cause.no_worker, 503, 'Model "noop" has no worker that takes requests.'),
        (Cause.queue_full, 503, "jobQueueSize"),
        (Cause.worker_died, 503, "The worker that ran the request has ended"),
        (Cause.response_timeout, 504, "no response within 120 s"),
        (Cause.sequence_expired, 410, "expired"),
        (Cause.draining, 503, "shutting down"),
    ],
)
@pytest.mark.parametrize("endpoint", ["infer", "infer_stream"])
async def test_a_job_without_an_answer(serving, cause, status, error, endpoint):
    serving.registry.model.behave = fails_with(cause)
    answer = await serving.request("POST", f"/v2/models/noop/{endpoint}", data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"]) == (status, cause.value)
    assert error in answer.json()["error"]


async def test_too_much_to_do_is_429_on_the_text_endpoints(serving):
    serving.registry.model.behave = fails_with(Cause.queue_full)
    for endpoint in ("generate", "generate_stream"):
        answer = await serving.request("POST", f"/v2/models/noop/{endpoint}", data=b"x")
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")


async def test_what_the_worker_refuses_has_its_status(serving):
    serving.registry.model.behave = lambda call: call.part(status=422, error="no inputs")
    answer = await serving.request("POST", INFER, data=b"{}")
    assert (answer.status, answer.json()["error"]) == (422, "no inputs")
    assert answer.json()["detail"][0]["msg"] == "no inputs"


async def test_one_response_of_a_streaming_model_is_a_response(serving):
    serving.registry.model.behave = stream_of(b'{"a":1}')
    assert (await serving.request("POST", INFER, data=b"x")).json() == {"a": 1}


@pytest.mark.parametrize("bodies", [(), (b"{}", b"{}")])
async def test_any_other_number_is_not_implemented(serving, bodies):
    serving.registry.model.behave = stream_of(*bodies)
    answer = await serving.request("POST", INFER, data=b"x")
    assert (answer.status, "infer_stream" in answer.json()["error"]) == (501, True)


async def test_a_request_may_say_how_long_it_waits(serving):
    for timeout, seconds in ((2_500_000, 2.5), (0, None), (None, None)):
        body = json.dumps({"inputs": [], "parameters": {"timeout": timeout}}).encode()
        assert (await serving.request("POST", INFER, data=body)).status == 200
        assert serving.registry.model.calls[-1].expires_in == seconds
    await serving.request("POST", INFER, data=b'{"inputs": [{"name": "timeout"}]}')
    assert serving.registry.model.calls[-1].expires_in is None
    for timeout in (-1, 1.5, "1", True, 2**64, 10**400):
        body = json.dumps({"inputs": [], "parameters": {"timeout": timeout}}).encode()
        answer = await serving.request("POST", INFER, data=body)
        assert (answer.status, "microseconds" in answer.json()["error"]) == (400, True)


async def test_a_parameter_is_the_deadline_of_a_step(serving):
    answer = await serving.request("POST", INFER, data=_timed(ts_request_deadline_ms=40, ts_request_late="drop"))
    timing = serving.registry.model.calls[-1].call.timing
    assert (answer.status, timing.within, timing.drops, timing.period) == (200, 0.04, True, None)
    assert timing.waited > 0, "its time began with the head of the request"
    await serving.request("POST", INFER, data=_timed(ts_request_period_ms=20.5, ts_request_degrade=True))
    timing = serving.registry.model.calls[-1].call.timing
    assert (timing.within, timing.period, timing.degrades) == (0.0205, 0.0205, True)
    headers = {"ts_request_deadline_ms": "9"}
    await serving.request("POST", INFER, data=_timed(ts_request_deadline_ms=40), headers=headers)
    assert serving.registry.model.calls[-1].call.timing.within == 0.04, "the body says it of this request"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"ts_request_deadline_ms": 0}, "ts_request_deadline_ms: '0' is not a time"),
        ({"ts_request_deadline_ms": "soon"}, "ts_request_deadline_ms: 'soon' is not a time"),
        ({"ts_request_late": "drop"}, "ts_request_late needs ts_request_deadline_ms or ts_request_period_ms"),
        ({"ts_request_degrade": True}, "ts_request_degrade needs ts_request_deadline_ms or ts_request_period_ms"),
    ],
)
async def test_a_parameter_of_a_deadline_that_means_nothing_is_refused(serving, parameters, why):
    answer = await serving.request("POST", INFER, data=_timed(**parameters))
    assert (answer.status, why in answer.json()["error"]) == (400, True)
    headers = {name: str(value) for name, value in parameters.items()}
    answer = await serving.request("POST", INFER, data=b'{"inputs": []}', headers=headers)
    assert (answer.status, why in answer.json()["error"]) == (400, True)


def _timed(**parameters):
    return json.dumps({"inputs": [], "parameters": parameters}).encode()


async def test_a_request_may_say_how_urgent_it_is(serving):
    for priority, submitted in ((1, 1), (2**64 - 1, 2**64 - 1), (0, 0), (None, 0)):
        body = json.dumps({"inputs": [], "parameters": {"priority": priority}}).encode()
        assert (await serving.request("POST", INFER, data=body)).status == 200
        assert serving.registry.model.calls[-1].priority == submitted
    for priority in (-1, 1.5, "1", True, 2**64):
        body = json.dumps({"inputs": [], "parameters": {"priority": priority}}).encode()
        answer = await serving.request("POST", INFER, data=body)
        assert (answer.status, "Parameter priority" in answer.json()["error"]) == (400, True)


async def test_a_header_says_it_for_requests_without_the_parameter(serving):
    headers = {"ts_request_priority": "7"}
    await serving.request("POST", INFER, data=b'{"inputs": []}', headers=headers)
    await serving.request("POST", INFER, data=b'{"inputs": [], "parameters": {"priority": 2}}', headers=headers)
    assert [call.priority for call in serving.registry.model.calls] == [7, 2]
    answer = await serving.request("POST", INFER, data=b"{}", headers={"ts_request_priority": "high"})
    assert (answer.status, "ts_request_priority: 'high'" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("length", ["-1", "1e3", "²", "9" * 5000])
@pytest.mark.parametrize("stateful", [False, True])
async def test_a_broken_length_header_is_left_to_the_worker(serving, length, stateful):
    serving.registry.model.is_stateful = stateful
    body = b'{"parameters": {"timeout": 5000000, "sequence_id": 1, "sequence_start": true}, "inputs": []}'
    headers = {"Inference-Header-Content-Length": length}
    assert (await serving.request("POST", INFER, data=body, headers=headers)).status == 200
    assert serving.registry.model.calls[-1].body == body


@pytest.mark.parametrize(
    ("accepted", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress), (None, bytes)]
)
async def test_descriptions_are_compressed_for_clients_that_accept_it(start, accepted, unpack):
    serving = await start(response_compression_min_size=10)
    headers = {"Accept-Encoding": accepted or "identity"}
    for method, path in (("GET", "/v2/models/noop/config"), ("POST", "/v2/repository/index")):
        answer = await serving.request(method, path, headers=headers)
        assert answer.headers.get("Content-Encoding") == accepted
        assert b"noop" in unpack(answer.body)
