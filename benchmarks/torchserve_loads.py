"""What is measured against TorchServe: its handlers, its REST paths and its gRPC methods."""

from __future__ import annotations

import sys

from benchmarks.benchmark_models import ROOT, SOURCES, HandlerModel, Probe
from benchmarks.grpc_loads import GrpcLoad
from benchmarks.loads import HttpLoad

sys.path.insert(0, str(ROOT / "frontend"))

from torchserve_py.apis.grpc.protos import inference_pb2 as messages

STREAM_CHUNKS = 100
SEQUENCES = 32
MEBIBYTE = 1 << 20
SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"

_ECHO_HANDLER = ROOT / "handlers" / "echo" / "echo_handler.py"
_ECHO_PROBE = Probe("/predictions/echo", b"x", b"x".__eq__)
ECHO = HandlerModel("echo", _ECHO_HANDLER, {"batchSize": 1}, _ECHO_PROBE)
ECHO_BATCHES = HandlerModel("echo", _ECHO_HANDLER, {"batchSize": 8, "maxBatchDelay": 5}, _ECHO_PROBE)
STREAM = HandlerModel(
    "stream",
    SOURCES / "stream_handler.py",
    {"batchSize": 1},
    Probe("/predictions/stream", b"x", (b"token " * STREAM_CHUNKS).__eq__),
)
STATEFUL = HandlerModel(
    "stateful",
    ROOT / "handlers" / "stateful" / "stateful_handler.py",
    {
        "batchSize": SEQUENCES,
        "maxBatchDelay": 1,  # ms; TorchServe is as fast with 5, this server slower
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 300_000,
        "maxNumSequence": 2 * SEQUENCES,
        "maxSequenceJobQueueSize": 8,
    },
    Probe("/predictions/stateful", b"2", b"2".__eq__, {"ts_request_sequence_id": "first"}),
)


def http(model: HandlerModel, connections: int, body: bytes | None = None) -> HttpLoad:
    """Posts to the model's predictions."""
    return HttpLoad(connections, model.probe.path, model.probe.body if body is None else body)


def sequences() -> HttpLoad:
    """Each connection is a sequence, and posts one step after the other."""
    return HttpLoad(SEQUENCES, STATEFUL.probe.path, STATEFUL.probe.body, sequences=True)


def predictions(model: HandlerModel, in_flight: int) -> GrpcLoad:
    """Unary gRPC calls."""
    return GrpcLoad(in_flight, f"{SERVICE}/Predictions", _request(model), _answers([model.probe.body]).__eq__)


def stream_predictions(in_flight: int) -> GrpcLoad:
    """gRPC calls whose answers are streams."""
    answers = _answers([b"token "] * STREAM_CHUNKS)
    return GrpcLoad(in_flight, f"{SERVICE}/StreamPredictions", _request(STREAM), answers.__eq__)


def _request(model: HandlerModel) -> bytes:
    request = messages.PredictionsRequest(model_name=model.name, input={"data": model.probe.body})
    return request.SerializeToString()


def _answers(bodies: list[bytes]) -> list[bytes]:
    return [messages.PredictionResponse(prediction=body).SerializeToString() for body in bodies]
