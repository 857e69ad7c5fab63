"""tritonclient over gRPC: everything but streams."""

import queue
import shutil
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton
from tests.conformance.triton_tensors import ARRAYS, X, tensor
from tests.e2e.running_server import DEADLINE, model_folder
from tritonclient.utils import InferenceServerException

from torchserve_py.apis.grpc.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("arithmetic")
    assert client.is_model_ready("arithmetic", "1.0")
    described = client.get_server_metadata(as_json=True)
    assert described["name"] == "torchserve-py"
    assert {"binary_tensor_data", "statistics", "sequence", "sequence(string_id)"} <= set(described["extensions"])
    metadata = client.get_model_metadata("arithmetic", as_json=True)
    assert metadata["versions"] == ["1.0"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
    assert [each["name"] for each in metadata["outputs"]] == ["next", "double"]
    config = client.get_model_config("arithmetic", as_json=True)["config"]
    assert config["name"] == "arithmetic"
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "2"]}]
    assert "sequence_batching" in client.get_model_config("sum", as_json=True)["config"]
    assert client.get_model_config("count").config.model_transaction_policy.decoupled


def test_infer(client):
    result = client.infer("arithmetic", [tensor("x", X)], request_id="7")
    assert result.as_numpy("next").tolist() == (X + 1).tolist()
    assert result.as_numpy("double").tolist() == (X * 2).tolist()
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("arithmetic", "1.0", "7")
    assert len(response.raw_output_contents) == 2
    only = client.infer("arithmetic", [tensor("x", X)], outputs=[triton.InferRequestedOutput("double")])
    assert only.as_numpy("next") is None
    assert only.as_numpy("double").tolist() == (X * 2).tolist()


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed(client, compression):
    result = client.infer("arithmetic", [tensor("x", X)], compression_algorithm=compression)
    assert result.as_numpy("next").tolist() == (X + 1).tolist()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_every_datatype_there_and_back(client, array):
    result = client.infer("echo", [tensor("x", array)]).as_numpy("x")
    assert result.dtype == array.dtype
    assert result.shape == array.shape
    assert np.array_equal(result, array, equal_nan=array.dtype.kind == "f")


def test_bfloat16(client):
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    sent = triton.InferInput("x", [2], "BF16")
    sent.set_data_from_numpy(array)
    result = client.infer("echo", [sent]).as_numpy("x")
    assert result.astype(np.float32).tolist() == [1.5, -2.0]


def test_bytes(client):
    array = np.array([b"\xff\x00", "é".encode(), b""], np.object_)
    assert client.infer("echo", [tensor("x", array)]).as_numpy("x").tolist() == array.tolist()


def test_messages_of_more_than_four_mebibytes(client):
    array = np.arange(5 * 2**20 // 4, dtype=np.float32)
    assert np.array_equal(client.infer("echo", [tensor("x", array)]).as_numpy("x"), array)


def test_async_infer(client):
    answered: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for number in range(10):
        client.async_infer(
            "arithmetic",
            [tensor("x", X * number)],
            callback=lambda result, error: answered.put((result, error)),
            request_id=str(number),
        )
    results = [answered.get(timeout=DEADLINE) for _ in range(10)]
    assert [error for _, error in results] == [None] * 10
    for result, _ in results:
        number = int(result.get_response().id)
        assert result.as_numpy("next").tolist() == (X * number + 1).tolist()


def test_metadata_in_and_out(open_server, channel):
    request = ModelInferRequest(model_name="echo", raw_input_contents=[b"\x01"])
    request.inputs.add(name="x", datatype="UINT8", shape=[1])
    _, call = GRPCInferenceServiceStub(channel).ModelInfer.with_call(request, metadata=(("x-mine", "42"),))
    assert dict(call.trailing_metadata())["x-yours"] == "42"


@pytest.mark.parametrize(
    ("call", "status", "says"),
    [
        (lambda client: client.infer("other", [tensor("x", X)]), "NOT_FOUND", "other"),
        (lambda client: client.infer("echo", [tensor("x", X)], model_version="9"), "NOT_FOUND", "9"),
        (lambda client: client.is_model_ready("other"), "NOT_FOUND", "other"),
        (lambda client: client.get_model_metadata("other"), "NOT_FOUND", "other"),
        (lambda client: client.get_model_config("other"), "NOT_FOUND", "other"),
        (lambda client: client.get_inference_statistics("other"), "NOT_FOUND", "other"),
        (lambda client: client.load_model("other"), "NOT_FOUND", "other"),
        (lambda client: client.unload_model("other"), "NOT_FOUND", "other"),
        (lambda client: client.get_system_shared_memory_status(), "UNIMPLEMENTED", "Shared memory"),
        (lambda client: client.get_cuda_shared_memory_status(), "UNIMPLEMENTED", "Shared memory"),
        (lambda client: client.get_trace_settings(), "UNIMPLEMENTED", ""),
        (lambda client: client.get_log_settings(), "UNIMPLEMENTED", ""),
        (
            lambda client: client.infer("echo", [tensor("x", np.array([b"raise"], np.object_))]),
            "INTERNAL",
            "",
        ),
        (
            lambda client: client.infer("arithmetic", [tensor("x", X)], outputs=[triton.InferRequestedOutput("none")]),
            "INVALID_ARGUMENT",
            "'none'",
        ),
        (lambda client: client.infer("sum", [tensor("INPUT", X)]), "INVALID_ARGUMENT", "correlation ID"),
        (lambda client: client.infer("sum", [tensor("INPUT", X)], sequence_id=5), "INVALID_ARGUMENT", "START flag"),
        (lambda client: client.infer("count", [tensor("x", np.array([3]))]), "UNIMPLEMENTED", "ModelStreamInfer"),
        (lambda client: client.infer("endless", [tensor("x", X)], client_timeout=0.5), "DEADLINE_EXCEEDED", ""),
    ],
)
def test_what_is_refused(client, call, status, says):
    with pytest.raises(InferenceServerException) as failed:
        call(client)
    assert failed.value.status() == f"StatusCode.{status}"
    assert says in failed.value.message()


def test_unary_requests_of_a_sequence_and_one_over_rest(open_server, client):
    def add(number: int, **more: Any) -> int:
        result = client.infer("sum", [tensor("INPUT", np.array([number]))], sequence_id=42, **more)
        return int(result.as_numpy("OUTPUT")[0])

    assert add(1, sequence_start=True) == 1
    assert add(2) == 3
    body = {
        "inputs": [{"name": "INPUT", "shape": [1], "datatype": "INT64", "data": [4]}],
        "parameters": {"sequence_id": 42},
    }
    answer = requests.post(f"{open_server.inference}/v2/models/sum/infer", json=body, timeout=DEADLINE)
    assert answer.json()["outputs"][0]["data"] == [7]
    assert add(3, sequence_end=True) == 10
    with pytest.raises(InferenceServerException, match="START flag"):
        add(1)


def test_statistics(client):
    def counts() -> tuple[int, int, int]:
        (stats,) = client.get_inference_statistics("arithmetic").model_stats
        assert stats.version == "1.0"
        inference = stats.inference_stats
        assert inference.compute_input.count == inference.compute_infer.count == inference.compute_output.count
        return inference.success.count, inference.queue.count, stats.execution_count

    before = counts()
    for _ in range(3):
        client.infer("arithmetic", [tensor("x", X)])
    assert counts() == tuple(count + 3 for count in before)
    named = {stats.name for stats in client.get_inference_statistics().model_stats}
    assert {"arithmetic", "echo", "sum", "count", "talk"} <= named


def test_the_repository(open_server, open_models, client):
    stored = open_server.model_store / "stored"
    shutil.copytree(open_models["arithmetic"], stored)

    def state() -> str | None:
        index = client.get_model_repository_index(as_json=True)["models"]
        return {each["name"]: each["state"] for each in index}.get("stored")

    assert state() == "UNAVAILABLE"
    client.load_model("stored")
    assert state() == "READY"
    assert client.infer("stored", [tensor("x", X)]).as_numpy("next").tolist() == (X + 1).tolist()
    client.load_model("stored")
    assert client.is_model_ready("stored")
    client.unload_model("stored")
    assert state() == "UNAVAILABLE"
    with pytest.raises(InferenceServerException):
        client.infer("stored", [tensor("x", X)])


#: Says how many bytes it was sent.
SIZE = """
def handle(data, context):
    return None if data is None else [[row["x"].nbytes] for row in data]
"""


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_tensors_of_any_size(open_server, client, compression):
    if "size" not in {each["name"] for each in client.get_model_repository_index(as_json=True)["models"]}:
        model_folder(open_server.model_store, "size", SIZE)
    client.load_model("size")
    large = np.zeros((25, 1_000_000), np.float32)
    result = client.infer("size", [tensor("x", large)], compression_algorithm=compression)
    assert result.as_numpy("x").tolist() == [large.nbytes]
    results: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: results.put(error or result.as_numpy("x").tolist()))
    for _ in range(3):
        client.async_stream_infer("size", [tensor("x", large)])
    assert [results.get(timeout=DEADLINE) for _ in range(3)] == [[large.nbytes]] * 3
    client.stop_stream()
    client.unload_model("size")


def test_priorities(client):
    for priority in (1, 2**63):
        result = client.infer("arithmetic", [tensor("x", X)], priority=priority)
        assert result.as_numpy("next").tolist() == (X + 1).tolist()
