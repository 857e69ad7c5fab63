"""tritonclient over HTTP, with and without asyncio, and httpx with httpx-sse: unmodified clients over REST."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from httpx_sse import connect_sse
from tests.conformance.open_inference_models import ECHO
from tests.conformance.triton_tensors import ARRAYS, X
from tests.e2e.running_server import RunningServer, model_folder
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

TIMEOUT = 60


@pytest.fixture(scope="module")
def address(open_server: RunningServer) -> str:
    return open_server.inference.removeprefix("http://")


@pytest.fixture
def http(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as client:
        yield client


def sent(name: str, array: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def wanted(name: str, *, binary: bool) -> triton.InferRequestedOutput:
    return triton.InferRequestedOutput(name, binary_data=binary)


def test_health_and_metadata(http):
    assert http.is_server_live()
    assert http.is_server_ready()
    assert http.is_model_ready("arithmetic")
    assert http.is_model_ready("arithmetic", "1.0")
    described = http.get_server_metadata()
    assert {"binary_tensor_data", "statistics", "model_repository", "generate"} <= set(described["extensions"])
    metadata = http.get_model_metadata("arithmetic")
    assert metadata["versions"] == ["1.0"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    config = http.get_model_config("arithmetic")
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]}]
    assert "sequence_batching" in http.get_model_config("sum")
    assert http.get_model_config("count")["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_infer(http, binary_in, binary_out):
    outputs = (
        None if binary_out is None else [wanted("next", binary=binary_out), wanted("double", binary=not binary_out)]
    )
    result = http.infer("arithmetic", [sent("x", X, binary=binary_in)], outputs=outputs, request_id="7")
    assert result.as_numpy("next").tolist() == (X + 1).tolist()
    assert result.as_numpy("double").tolist() == (X * 2).tolist()
    response = result.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("arithmetic", "1.0", "7")


def test_infer_with_some_outputs_and_a_version(http):
    only = http.infer("arithmetic", [sent("x", X)], model_version="1.0", outputs=[wanted("double", binary=True)])
    assert [output["name"] for output in only.get_response()["outputs"]] == ["double"]
    with pytest.raises(InferenceServerException, match="no output 'missing'"):
        http.infer("arithmetic", [sent("x", X)], outputs=[wanted("missing", binary=True)])


def test_async_infer(http):
    pending = [http.async_infer("arithmetic", [sent("x", X * number)]) for number in range(5)]
    for number, each in enumerate(pending):
        assert each.get_result().as_numpy("double").tolist() == (X * number * 2).tolist()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_both_ways(http, algorithm):
    large = np.tile(X, (500, 1))
    result = http.infer(
        "arithmetic",
        [sent("x", large)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    assert result.as_numpy("next").tolist() == (large + 1).tolist()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_every_datatype_there_and_back(http, array):
    result = http.infer("echo", [sent("x", array)]).as_numpy("x")
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


def test_bf16_there_and_back(http):
    declared = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    result = http.infer("halves", [sent("x", declared)]).as_numpy("x")
    assert result.dtype == declared.dtype
    assert result.tolist() == declared.tolist()


def test_bytes_there_and_back(http):
    elements = np.array([b"a", b"", "bé".encode(), b"\xff\0"], dtype=object)
    assert http.infer("echo", [sent("x", elements)]).as_numpy("x").tolist() == elements.tolist()
    texts = np.array(["a", "bé"], dtype=object)
    output = wanted("x", binary=False)
    result = http.infer("echo", [sent("x", texts, binary=False)], outputs=[output]).as_numpy("x")
    assert result.tolist() == texts.tolist()
    with pytest.raises(InferenceServerException, match="UTF-8"):
        http.infer("echo", [sent("x", elements)], outputs=[output])


def test_headers_go_both_ways(http, open_server):
    result = http.infer("echo", [sent("x", X)], headers={"X-Mine": "hello"})
    assert result.as_numpy("x").tolist() == X.tolist()
    answer = httpx.post(
        f"{open_server.inference}/v2/models/echo/infer",
        json={"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["x"]}]},
        headers={"X-Mine": "hello"},
        timeout=TIMEOUT,
    )
    assert answer.headers["x-yours"] == "hello"


@pytest.mark.parametrize("sequence_id", [1001, "1001", "a text"])
def test_sequences(http, sequence_id):
    sums = []
    for step in range(4):
        result = http.infer(
            "sum",
            [sent("INPUT", np.array([step + 1], np.int32))],
            sequence_id=sequence_id,
            sequence_start=step == 0,
            sequence_end=step == 3,
        )
        sums.append(int(result.as_numpy("OUTPUT")[0]))
    assert sums == [1, 3, 6, 10]
    with pytest.raises(InferenceServerException, match="sequence_start"):
        http.infer("sum", [sent("INPUT", np.array([1], np.int32))], sequence_id=sequence_id)


def test_a_stateful_model_wants_a_sequence(http):
    with pytest.raises(InferenceServerException, match="correlation ID"):
        http.infer("sum", [sent("INPUT", np.array([1], np.int32))])


def test_errors_are_told(http):
    with pytest.raises(InferenceServerException, match="Model ghost not found") as caught:
        http.infer("ghost", [sent("x", X)])
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="with version 9 not found"):
        http.get_model_metadata("echo", "9")
    with pytest.raises(InferenceServerException, match="Prediction failed") as caught:
        http.infer("echo", [sent("x", np.array([b"raise"], dtype=object))])
    assert caught.value.status() == "500"
    with pytest.raises(InferenceServerException, match="Shared memory") as caught:
        http.get_system_shared_memory_status()
    assert caught.value.status() == "501"
    with pytest.raises(InferenceServerException, match="Traces"):
        http.get_trace_settings()
    with pytest.raises(InferenceServerException, match="log"):
        http.get_log_settings()


def test_statistics_count_requests(http):
    before = http.get_inference_statistics("arithmetic")["model_stats"][0]
    http.infer("arithmetic", [sent("x", X)])
    after = http.get_inference_statistics("arithmetic", "1.0")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    stats = after["inference_stats"]
    assert stats["queue"]["count"] == before["inference_stats"]["queue"]["count"] + 1
    assert stats["compute_input"]["count"] == stats["compute_infer"]["count"] == stats["compute_output"]["count"]
    names = [entry["name"] for entry in http.get_inference_statistics()["model_stats"]]
    assert {"arithmetic", "echo"} <= set(names)


def test_the_repository(http, open_server):
    later = model_folder(open_server.model_store, "later", ECHO) / "handler.py"
    entries = {entry["name"]: entry for entry in http.get_model_repository_index()}
    assert entries["echo"] == {"name": "echo", "version": "1.0", "state": "READY", "reason": ""}
    assert entries["later"]["state"] == "UNAVAILABLE"
    assert not http.is_model_ready("later")
    http.load_model("later")
    assert http.infer("later", [sent("x", X)]).as_numpy("x").tolist() == X.tolist()
    later.write_text(ECHO.replace('return [row["body"]', 'return [row["body"] * 3'))
    http.load_model("later")  # once more: what is on disk now
    assert http.infer("later", [sent("x", X)]).as_numpy("x").tolist() == (X * 3).tolist()
    http.unload_model("later")
    with pytest.raises(InferenceServerException, match="not found"):
        http.infer("later", [sent("x", X)])
    entries = {entry["name"]: entry for entry in http.get_model_repository_index()}
    assert (entries["later"]["state"], entries["later"]["reason"]) == ("UNAVAILABLE", "unloaded")
    http.load_model("later")
    assert http.is_model_ready("later")
    http.unload_model("later")
    with pytest.raises(InferenceServerException, match="Model nowhere not found"):
        http.load_model("nowhere")
    with pytest.raises(InferenceServerException, match="parameter 'config'"):
        http.load_model("echo", config="{}")


async def test_the_client_with_asyncio(address):
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready("arithmetic")
        assert (await client.get_model_metadata("arithmetic"))["name"] == "arithmetic"
        assert (await client.get_model_config("arithmetic"))["max_batch_size"] == 0
        assert (await client.get_inference_statistics("arithmetic"))["model_stats"]
        assert await client.get_model_repository_index()
        for binary in (True, False):
            result = await client.infer("arithmetic", [sent("x", X, binary=binary)], request_id="9")
            assert result.as_numpy("next").tolist() == (X + 1).tolist()
            assert result.get_response()["id"] == "9"
        with pytest.raises(InferenceServerException, match="Model ghost not found"):
            await client.infer("ghost", [sent("x", X)])


# httpx-sse, as published examples use it.


def prompt(**members: Any) -> dict[str, Any]:
    return {
        "id": None,
        "parameters": None,
        "inputs": [{"name": "count", "shape": [1], "datatype": "INT64", "data": [3], "parameters": None}],
        **members,
    }


@pytest.mark.parametrize("endpoint", ["infer_stream", "generate_stream"])
@pytest.mark.parametrize("version", ["", "/versions/1.0"])
def test_events_of_a_streaming_handler(open_server, endpoint, version):
    url = f"{open_server.inference}/v2/models/count{version}/{endpoint}"
    with httpx.Client(timeout=TIMEOUT) as client, connect_sse(client, "POST", url, json=prompt()) as source:
        events = [json.loads(event.data) for event in source.iter_sse()]
    assert [event["outputs"][0]["data"] for event in events] == [[0], [1], [2]]
    assert {event["model_name"] for event in events} == {"count"}
    assert len({event["id"] for event in events}) == 1


def test_events_of_a_handler_with_one_response(open_server):
    url = f"{open_server.inference}/v2/models/echo/infer_stream"
    with httpx.Client(timeout=TIMEOUT) as client, connect_sse(client, "POST", url, json=prompt(id="7")) as source:
        [event] = [json.loads(event.data) for event in source.iter_sse()]
    assert (event["id"], event["outputs"][0]["data"]) == ("7", [3])


def test_a_stream_that_is_refused_has_a_status(open_server):
    answer = httpx.post(f"{open_server.inference}/v2/models/ghost/infer_stream", json=prompt(), timeout=TIMEOUT)
    assert (answer.status_code, answer.json()) == (404, {"error": "Model ghost not found"})
    answer = httpx.post(f"{open_server.inference}/v2/models/count/infer_stream", json={}, timeout=TIMEOUT)
    assert (answer.status_code, '"inputs"' in answer.json()["error"]) == (422, True)


def test_several_responses_are_no_answer_to_infer(open_server):
    answer = httpx.post(f"{open_server.inference}/v2/models/count/infer", json=prompt(), timeout=TIMEOUT)
    assert (answer.status_code, "infer_stream" in answer.json()["error"]) == (501, True)


def test_text_in_and_text_out(open_server):
    body = {"text_input": "hello", "temperature": 0.5, "id": "7"}
    answer = httpx.post(f"{open_server.inference}/v2/models/echo/generate", json=body, timeout=TIMEOUT)
    assert answer.json() == {"id": "7", "model_name": "echo", "model_version": "1.0", "text_output": "hello"}
    url = f"{open_server.inference}/v2/models/echo/versions/1.0/generate_stream"
    with httpx.Client(timeout=TIMEOUT) as client, connect_sse(client, "POST", url, json={"text_input": "hi"}) as source:
        [event] = [json.loads(event.data) for event in source.iter_sse()]
    assert event == {"model_name": "echo", "model_version": "1.0", "text_output": "hi"}
    answer = httpx.post(f"{open_server.inference}/v2/models/echo/generate", json={"prompt": "x"}, timeout=TIMEOUT)
    assert (answer.status_code, set(answer.json())) == (422, {"error", "detail"})


def test_a_body_that_is_one_tensor(open_server):
    answer = httpx.post(
        f"{open_server.inference}/v2/models/arithmetic/infer",
        content=X.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
        timeout=TIMEOUT,
    )
    size = int(answer.headers["inference-header-content-length"])
    outputs = json.loads(answer.content[:size])["outputs"]
    assert [output["shape"] for output in outputs] == [[2, 2], [2, 2]]
    assert np.frombuffer(answer.content[size:], np.float32).tolist() == [2, 3, 4, 5, 2, 4, 6, 8]


def test_documents(open_server):
    document = httpx.get(f"{open_server.inference}/v2/models/arithmetic/docs/dataplane.json", timeout=TIMEOUT).json()
    example = document["paths"]["/v2/models/arithmetic/infer"]["post"]["requestBody"]["content"]["application/json"]
    answer = httpx.post(f"{open_server.inference}/v2/models/arithmetic/infer", json=example["example"], timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text


def test_priorities(http):
    for priority in (1, 2**64 - 1):
        assert http.infer("arithmetic", [sent("x", X)], priority=priority).as_numpy("next").tolist() == (X + 1).tolist()
    with pytest.raises(InferenceServerException, match="Parameter priority: -1 is not a priority"):
        http.infer("arithmetic", [sent("x", X)], priority=-1)
