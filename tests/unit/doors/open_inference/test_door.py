"""The paths under /v2: what each answers, and that every refusal has the protocol's shape."""

import asyncio
import gzip
import json
import zlib
from dataclasses import replace

import pytest
from openapi_spec_validator import validate
from tests.unit.doors.fake_serving import Call, FakeModel, FakeServing, worker_status

from torchserve_py.core.errors import ModelNotFound
from torchserve_py.scheduling.effects import Cause
from torchserve_py.settings.schemas.versions import SavedModel
from ts.protocol.messages import CUSTOM, OPEN_INFERENCE_REST

INFER = "/v2/models/noop/infer"
INPUTS = [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]


async def test_what_the_server_says_of_itself(serving):
    for path in ("/v2", "/v2/", "/v2?verbose=1"):
        answer = await serving.request("GET", path)
        assert answer.status == 200
        assert set(answer.json()) == {"name", "version", "extensions"}
        assert {"model_repository", "binary_tensor_data", "statistics", "generate"} <= set(answer.json()["extensions"])
    assert (await serving.request("GET", "/v2/health/live")).json() == {"live": True}


async def test_repository_is_advertised_only_where_models_may_be_loaded(start):
    serving = await start(enable_model_api=False)
    assert "model_repository" not in (await serving.request("GET", "/v2")).json()["extensions"]
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 405


async def test_readiness(serving):
    answer = await serving.request("GET", "/v2/health/ready")
    assert (answer.status, answer.json()) == (200, {"ready": True})
    answer = await serving.request("GET", "/v2/models/noop/versions/1.0/ready")
    assert (answer.status, answer.json()) == (200, {"name": "noop", "ready": True})
    serving.registry.model.workers = [worker_status(ready=False)]
    answer = await serving.request("GET", "/v2/models/noop/ready")
    assert (answer.status, answer.json()) == (400, {"name": "noop", "ready": False})
    serving.registry.is_startup_ready = False
    answer = await serving.request("GET", "/v2/health/ready")
    assert (answer.status, answer.json()) == (400, {"ready": False})


async def test_a_server_that_drains_is_not_ready(serving):
    serving.doors.start_draining()
    assert (await serving.request("GET", "/v2/health/ready")).status == 400
    assert (await serving.request("GET", "/v2/health/live")).status == 200


async def test_metadata_show_what_the_model_has_declared(start):
    model = FakeModel(version="2.0")
    model.declared = {"inputs": INPUTS, "outputs": INPUTS, "platform": "mine"}
    serving = await start(FakeServing([FakeModel(version="1.0"), model]))
    assert (await serving.request("GET", "/v2/models/noop")).json() == {
        "name": "noop",
        "versions": ["1.0", "2.0"],
        "platform": "mine",
        "inputs": INPUTS,
        "outputs": INPUTS,
    }
    answer = await serving.request("GET", "/v2/models/noop/versions/1.0")
    assert (answer.json()["versions"], answer.json()["inputs"]) == (["1.0"], [])


async def test_the_configuration_of_a_model(start):
    model = FakeModel()
    model.declared = {"inputs": INPUTS, "max_batch_size": 8, "max_batch_time": 0.5}
    serving = await start(FakeServing([model, FakeModel("stateful", stateful=True)]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 500_000}
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert "sequence_batching" not in config
    config = (await serving.request("GET", "/v2/models/stateful/config")).json()
    assert config["sequence_batching"]["max_sequence_idle_microseconds"] == 60_000_000
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)


async def test_a_batch_size_is_told_unless_a_declared_shape_contradicts_it(start):
    model = FakeModel()
    model.declared = {"max_batch_size": 8}
    serving = await start(FakeServing([model]))
    for inputs, size in (([], 8), (INPUTS, 8), ([{"name": "x", "datatype": "FP32", "shape": [2]}], 0)):
        model.declared = {"inputs": inputs, "max_batch_size": 8}
        config = (await serving.request("GET", "/v2/models/noop/config")).json()
        assert (config["max_batch_size"], "dynamic_batching" in config) == (size, size > 0)


async def test_the_servers_own_batches_are_told_without_a_batch_size_for_clients(start):
    model = FakeModel()
    model.config = replace(model.config, batch_size=4, max_batch_delay_ms=50)
    serving = await start(FakeServing([model]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["max_batch_size"] == 0
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 50_000}


async def test_statistics(serving):
    for path in ("/v2/models/stats", "/v2/models/noop/stats", "/v2/models/noop/versions/1.0/stats"):
        [entry] = (await serving.request("GET", path)).json()["model_stats"]
        assert entry["name"] == "noop"


@pytest.mark.parametrize("path", ["/v2/docs/dataplane.json", "/v2/models/noop/docs/dataplane.json"])
async def test_documents_are_openapi(start, path):
    model = FakeModel()
    model.declared = {"inputs": INPUTS}
    serving = await start(FakeServing([model]))
    document = (await serving.request("GET", path, headers={"Accept-Encoding": "identity"})).json()
    validate(document)
    page = await serving.request("GET", path.removesuffix("/dataplane.json"))
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert path.encode() in page.body


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/nothing", 404, "Not Found"),
        ("GET", "/v2/models", 404, "Not Found"),
        ("GET", "/v2/models/noop/what", 404, "Not Found"),
        ("GET", "/v2/repository", 404, "Not Found"),
        ("POST", "/v2", 405, "Method Not Allowed"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("GET", "/v2/models/ghost", 404, "Model ghost not found"),
        ("POST", "/v2/models/ghost/infer", 404, "Model ghost not found"),
        ("GET", "/v2/models/noop/versions/9", 404, "Model noop with version 9 not found"),
        ("POST", "/v2/models/noop/versions/9/infer_stream", 404, "Model noop with version 9 not found"),
        ("GET", "/v2/systemsharedmemory/status", 501, "Shared memory"),
        ("POST", "/v2/cudasharedmemory/region/r/register", 501, "Shared memory"),
        ("GET", "/v2/logging", 501, "log"),
        ("POST", "/v2/trace/setting", 501, "Traces"),
        ("POST", "/v2/models/noop/trace/setting", 501, "Traces"),
        ("POST", "/v2/repository/mine/models/noop/load", 501, "one repository"),
    ],
)
async def test_refusals(serving, method, path, status, error):
    answer = await serving.request(method, path)
    assert (answer.status, set(answer.json())) == (status, {"error"})
    assert error in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


async def test_a_wrong_token_is_refused_in_the_protocols_shape(start):
    serving = await start(disable_token_authorization=False)
    assert "Token" in (await serving.request("POST", INFER, data=b"x")).json()["error"]
    keys = json.loads(serving.key_file.read_text())
    inference = {"Authorization": f"Bearer {keys['inference']['key']}"}
    management = {"Authorization": f"Bearer {keys['management']['key']}"}
    assert (await serving.request("POST", INFER, data=b"x", headers=inference)).status == 200
    assert (await serving.request("POST", "/v2/repository/index", headers=inference)).status == 400
    assert (await serving.request("POST", "/v2/repository/index", headers=management)).status == 200


# Inference.


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
        ("br", b"x", 400),
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


def fails_with(cause: Cause):
    return lambda call: call.parts.fail(cause)


@pytest.mark.parametrize(
    ("cause", "status", "error"),
    [
        (Cause.no_worker, 503, "Model noop is not ready yet."),
        (Cause.queue_full, 503, "job_queue_size"),
        (Cause.worker_died, 503, "Worker died"),
        (Cause.response_timeout, 504, "Worker died"),
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


def stream_of(*bodies: bytes, error: str | None = None):
    def behave(call: Call) -> None:
        for body in bodies:
            call.part(body, more=True)
        call.part(error=error, status=200 if error is None else 500)

    return behave


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
    for timeout in (-1, 1.5, "1", True):
        body = json.dumps({"inputs": [], "parameters": {"timeout": timeout}}).encode()
        answer = await serving.request("POST", INFER, data=body)
        assert (answer.status, "microseconds" in answer.json()["error"]) == (400, True)


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


# Events.


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
    def behave(call: Call) -> None:
        call.part(b'{"a":1}', more=True)
        call.parts.fail(Cause.worker_died)

    serving.registry.model.behave = behave
    answer = await serving.request("POST", "/v2/models/noop/infer_stream", data=b"x")
    assert answer.body == b'data: {"a":1}\n\ndata: {"error":"Worker died."}\n\n'


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


async def test_a_client_that_leaves_cancels_its_job(serving):
    serving.registry.model.behave = lambda call: call.part(b"{}", more=True)
    connection = await serving.raw(
        b"POST /v2/models/noop/infer_stream HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n\r\nx"
    )
    await connection.head()
    await connection.close()
    await serving.registry.model.cancelled.wait()


# Sequences.


def sequence_body(**parameters: object) -> bytes:
    return json.dumps({"inputs": [], "parameters": parameters}).encode()


async def test_parameters_say_which_sequence_a_request_belongs_to(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    await serving.request("POST", INFER, data=sequence_body(sequence_id=7, sequence_start=True))
    await serving.request("POST", INFER, data=sequence_body(sequence_id=7, sequence_end=True))
    assert [(call.sequence_id, call.starts_sequence, call.ends_sequence) for call in model.calls] == [
        ("7", True, False),
        ("7", False, True),
    ]
    assert model.calls[0].header_dict["ts_request_sequence_id"] == "7"


async def test_a_sequence_may_be_told_before_binary_tensors(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    text = sequence_body(sequence_id="a", sequence_start=True)
    headers = {"Inference-Header-Content-Length": str(len(text))}
    await serving.request("POST", INFER, data=text + b"\xff\xff", headers=headers)
    assert model.calls[0].sequence_id == "a"


async def test_torchserves_headers_are_good_for_sequences_too(start):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    await serving.request("POST", INFER, data=b'{"inputs": []}', headers={"ts_request_sequence_id": "mine"})
    assert model.calls[0].sequence_id == "mine"


@pytest.mark.parametrize(
    "parameters",
    [{}, {"sequence_id": 0}, {"sequence_id": 7}, {"sequence_id": 1.5}, {"sequence_id": 7, "sequence_start": 1}],
)
async def test_sequences_that_cannot_be(start, parameters):
    model = FakeModel(stateful=True)
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", INFER, data=sequence_body(**parameters))
    assert (answer.status, set(answer.json())) == (400, {"error"})
    assert not model.calls


# The repository.


async def test_the_index_has_what_is_served_and_what_is_stored(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    starting = FakeModel("starting")
    starting.workers = [worker_status(ready=False)]
    broken = FakeModel("broken")
    broken.workers = [worker_status(ready=False, gave_up=True, failure="no weights")]
    failing = FakeModel("failing")
    failing.workers = [worker_status(ready=False), worker_status(ready=False, failure="no weights")]
    unwell = FakeModel("unwell")
    unwell.is_well = False
    serving = await start(FakeServing([FakeModel(), starting, broken, failing, unwell]))
    for body in (b"", b"{}", b'{"ready": null}'):
        entries = (await serving.request("POST", "/v2/repository/index", data=body)).json()
        assert {(entry["name"], entry["version"], entry["state"], entry["reason"]) for entry in entries} == {
            ("noop", "1.0", "READY", ""),
            ("starting", "1.0", "LOADING", ""),
            ("broken", "1.0", "UNAVAILABLE", "its workers do not start: no weights"),
            ("failing", "1.0", "LOADING", "the last attempt failed: no weights"),
            ("unwell", "1.0", "UNAVAILABLE", "it says that it is not ready"),
            ("other", "", "UNAVAILABLE", "not loaded"),
        }
    entries = (await serving.request("POST", "/v2/repository/mine/index", data=b'{"ready": true}')).json()
    assert [entry["name"] for entry in entries] == ["noop"]
    assert (await serving.request("POST", "/v2/repository/index", data=b'{"ready": 1}')).status == 400


async def test_the_index_has_models_by_the_names_of_their_own_files(start, tmp_path):
    settings = {"name": "mnist-svm", "implementation": "mlserver_sklearn.SKLearnModel"}
    for folder, name in (("mnist-svm", "mnist-svm"), ("other_folder", "mnist-lr")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model-settings.json").write_text(json.dumps(settings | {"name": name}))
    served, downloaded = FakeModel("mnist-svm"), FakeModel("renamed")
    served.url, downloaded.url = str(tmp_path / "mnist-svm"), "https://h/x.mar?y"
    (tmp_path / "x.mar").write_bytes(b"")
    serving = await start(FakeServing([served, downloaded]))
    entries = (await serving.request("POST", "/v2/repository/index")).json()
    assert [(entry["name"], entry["state"]) for entry in entries] == [
        ("mnist-svm", "READY"),
        ("renamed", "READY"),
        ("mnist-lr", "UNAVAILABLE"),
    ]
    await serving.request("POST", "/v2/repository/models/mnist-lr/load")
    assert serving.registry.requests == [("other_folder", "mnist-lr", False, False)]
    (tmp_path / "other_folder" / "model-settings.json").write_text(json.dumps(settings | {"name": "mnist-forest"}))
    entries = (await serving.request("POST", "/v2/repository/index")).json()
    assert entries[-1]["name"] == "mnist-forest"


async def test_a_stored_model_is_loaded_by_its_name(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    serving = await start()
    answer = await serving.request("POST", "/v2/repository/models/other/load", data=b"{}")
    assert (answer.status, answer.body) == (200, b"")
    assert serving.registry.requests == [("other.mar", "other", False, False)]
    answer = await serving.request("POST", "/v2/repository/models/ghost/load")
    assert (answer.status, answer.json()) == (404, {"error": "Model ghost not found"})
    body = b'{"parameters": {"config": "{}"}}'
    assert (await serving.request("POST", "/v2/repository/models/other/load", data=body)).status == 501


async def test_a_model_that_is_served_is_loaded_again(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True, chosen=True)
    serving = await start(FakeServing(saved=[saved]))
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 200
    assert serving.registry.requests == [("/models/noop", "noop", True, True)]


async def test_a_model_whose_workers_fail_to_start_keeps_nobody_waiting(start):
    failing = FakeModel()
    failing.is_loaded = False
    failing.workers = [worker_status(ready=False, failure="no weights")]
    serving = await start(FakeServing([failing]))
    answer = await serving.request("POST", INFER, data=b"x")
    assert (answer.status, answer.headers["ts-error-cause"]) == (503, "no_worker")
    assert answer.json() == {"error": "Model noop is not ready: its workers fail to start."}
    assert failing.calls == []


@pytest.mark.parametrize("other", [worker_status(), worker_status(ready=False)], ids=["ready", "loading"])
async def test_a_request_waits_while_one_worker_is_ready_or_still_loads(start, other):
    model = FakeModel()
    model.workers = [worker_status(ready=False, failure="no weights"), other]
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", INFER, data=b"x")
    assert (answer.status, answer.body) == (200, b"x")


async def test_all_versions_are_unloaded_and_come_back_from_where_they_were(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True)
    registry = FakeServing([FakeModel(), FakeModel("noop", "2.0")], saved=[saved])
    serving = await start(registry)
    body = b'{"parameters": {"unload_dependents": false}}'
    assert (await serving.request("POST", "/v2/repository/models/noop/unload", data=body)).status == 200
    assert registry.registered == []
    registry.saved = []
    assert (await serving.request("POST", "/v2/repository/index")).json() == [
        {"name": "noop", "version": "1.0", "state": "UNAVAILABLE", "reason": "unloaded"}
    ]
    answer = await serving.request("POST", "/v2/repository/models/noop/unload")
    assert (answer.status, answer.json()) == (404, {"error": "Model noop not found"})
    await serving.request("POST", "/v2/repository/models/noop/load")
    assert registry.requests == [("unload", "noop", None), ("/models/noop", "noop", True, False)]


async def test_while_a_model_is_unloaded_the_index_says_so(start):
    saved = SavedModel(name="noop", version="1.0", location="/models/noop", default=True)
    registry = FakeServing(saved=[saved], hold=asyncio.Event())
    serving = await start(registry)
    unloading = asyncio.create_task(serving.request("POST", "/v2/repository/models/noop/unload"))
    while not registry.requests:
        await asyncio.sleep(0)
    registry.registered, registry.saved = [], []  # it is gone for all that comes, and finishes what it has
    assert (await serving.request("POST", "/v2/repository/index")).json() == [
        {"name": "noop", "version": "1.0", "state": "UNLOADING", "reason": ""}
    ]
    assert (await serving.request("POST", INFER, data=b"x")).status == 404
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 409
    registry.registered = [FakeModel()]
    registry.hold.set()
    assert (await unloading).status == 200


async def test_requests_that_name_no_version_are_for_the_latest(start):
    registry = FakeServing([FakeModel(version="1.0"), FakeModel(version="2.0")])
    serving = await start(registry)
    await serving.request("POST", INFER, data=b"x")
    assert [len(model.calls) for model in registry.registered] == [0, 1]
    assert registry.registered[1].calls[0].by_default
    registry.registered[1].workers = [worker_status(ready=False)]
    assert (await serving.request("GET", "/v2/models/noop/ready")).status == 400
    registry.registered[1].declared = {"platform": "that of 2.0"}
    for path in ("", "/config"):
        assert (await serving.request("GET", f"/v2/models/noop{path}")).json()["platform"] == "that of 2.0"


async def test_a_model_that_cannot_be_loaded_says_why(start, tmp_path):
    (tmp_path / "other.mar").write_bytes(b"")
    serving = await start(FakeServing(failure=ModelNotFound("other")))
    assert (await serving.request("POST", "/v2/repository/models/other/load")).status == 404


# Routes of models' own.


async def test_a_models_own_route(start):
    model = FakeModel()
    model.contract = "mlserver"
    model.declared = {"routes": [["/custom/{item}", ["POST"], "answer_it"], ["/v2/mine", ["GET"], "mine"]]}
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", "/custom/a%20b?x=1", data=b"hello")
    assert (answer.status, answer.body) == (200, b"hello")
    [call] = model.calls
    assert call.protocol == CUSTOM
    told = {name: value for name, value in call.header_dict.items() if name.startswith(":")}
    assert told.pop(":authority")
    assert told.pop(":client").startswith("127.0.0.1:")
    assert told == {":method": "POST", ":path": "/custom/a%20b?x=1", ":scheme": "http", ":endpoint": "answer_it"}
    assert (await serving.request("GET", "/v2/mine")).status == 200
    answer = await serving.request("GET", "/custom/1")
    assert (answer.status, answer.headers["allow"], answer.json()) == (405, "POST", {"error": "Method Not Allowed"})
    assert (await serving.request("POST", "/custom/1/2")).status == 404


async def test_a_models_own_route_wants_a_token(start):
    model = FakeModel()
    model.contract = "mlserver"
    model.declared = {"routes": [["/custom", ["GET"], "it"]]}
    serving = await start(FakeServing([model]), disable_token_authorization=False)
    assert (await serving.request("GET", "/custom")).status == 400
    assert not model.calls


def declaring(name: str, *routes: list[object]) -> FakeModel:
    """A model with routes of its own, which answers with its name."""
    model = FakeModel(name)
    model.contract = "mlserver"
    model.declared = {"routes": list(routes)}
    model.behave = lambda call: call.part(name.encode())
    return model


OWN = (["/invocations", ["POST"], "invoke"], ["/ping", ["GET"], "ping"])


async def test_a_model_has_the_servers_paths_that_it_alone_declares(start):
    other = FakeModel("other")
    other.behave = lambda call: call.part(b"by the server")
    serving = await start(FakeServing([declaring("mine", *OWN), other]))
    assert (await serving.request("POST", "/invocations")).body == b"mine"
    assert (await serving.request("GET", "/ping")).body == b"mine"
    assert (await serving.request("POST", "/invocations?model_name=mine")).body == b"mine"
    assert (await serving.request("POST", "/invocations?model_name=other")).body == b"by the server"
    answer = await serving.request("PUT", "/invocations?model_name=other")
    assert (answer.status, answer.body) == (200, b"by the server")


async def test_several_models_that_declare_a_path_of_the_server_are_told_apart_by_name(start):
    serving = await start(FakeServing([declaring("a", *OWN), declaring("b", *OWN)]))
    assert (await serving.request("POST", "/invocations?model_name=b")).body == b"b"
    answer = await serving.request("POST", "/invocations")
    assert (answer.status, answer.json()) == (
        400,
        {"error": "Several models have this path (a, b): name one of them in the query, as in ?model_name=a."},
    )
    assert (await serving.request("GET", "/ping")).json() == {"status": "Healthy"}


async def test_several_models_with_a_path_of_their_own_are_told_apart_by_name(start):
    route = ["/mine/{x}", ["POST"], "it"]
    serving = await start(FakeServing([declaring("a", route), declaring("b", route)]))
    assert (await serving.request("POST", "/mine/1?model_name=b")).body == b"b"
    for query in ("", "?model_name=c"):
        answer = await serving.request("POST", f"/mine/1{query}")
        assert (answer.status, "(a, b)" in answer.json()["error"]) == (400, True)


async def test_no_model_gets_what_is_asked_of_another(start):
    paths = ["/predictions/noop", "/v2/models/noop/infer", "/v2/models/noop", "/ready", "/live", "/{x}/predict"]
    thief = declaring("thief", *([path, ["GET", "POST"], "steal"] for path in paths))
    serving = await start(FakeServing([FakeModel("noop"), thief]))
    for path in ("/predictions/noop", "/v2/models/noop/infer", "/noop/predict"):
        await serving.request("POST", path, data=b'{"inputs": []}')
    for path in ("/v2/models/noop", "/ready", "/live"):
        await serving.request("GET", path)
    assert thief.calls == []


@pytest.mark.parametrize("declared", [5, "x", [5], [["/{x", ["GET"], "f"]], [["/mine", ["GET"], "f"], None]])
async def test_routes_that_make_no_sense_leave_others_alone(start, declared, caplog):
    broken = declaring("broken")
    broken.declared = {"routes": declared}
    serving = await start(FakeServing([broken, declaring("whole", ["/whole", ["GET"], "f"])]))
    for _ in range(3):
        assert (await serving.request("GET", "/whole")).body == b"whole"
        assert (await serving.request("GET", "/mine")).status == 404
    warnings = [each for each in caplog.records if "broken" in each.getMessage()]
    assert len(warnings) == 1


async def test_gpu_models_have_a_gpu_group(start):
    model = FakeModel()
    model.config = replace(model.config, device_type="gpu")
    serving = await start(FakeServing([model]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["instance_group"][0]["kind"] == "KIND_GPU"
