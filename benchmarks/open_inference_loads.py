"""What is measured against MLServer: the Open Inference Protocol by REST and gRPC, for a model written for MLServer."""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

from benchmarks.benchmark_models import ROOT, SOURCES, FolderModel, Probe
from benchmarks.grpc_loads import GrpcLoad
from benchmarks.loads import HttpLoad

sys.path.insert(0, str(ROOT / "backend"))

from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

RESPONSES = 100
FLOATS = 262_144  # 1 MB
SERVICE = "/inference.GRPCInferenceService"

_PATH = "/v2/models/echo/infer"
_JSON = {"Content-Type": "application/json"}
_WORD = "x"


def _body(datatype: str, data: list[Any]) -> bytes:
    tensor = {"name": "data", "shape": [len(data)], "datatype": datatype, "data": data}
    return json.dumps({"id": "1", "inputs": [tensor]}).encode()


def _echoes_the_word(answer: bytes) -> bool:
    (output,) = json.loads(answer)["outputs"]
    return bool(output["data"] == [_WORD])


ECHO = FolderModel(
    "echo", SOURCES / "mlserver_echo", Probe(_PATH, _body("BYTES", [_WORD]), _echoes_the_word, dict(_JSON))
)


def infer() -> HttpLoad:
    """A tensor of one word."""
    return HttpLoad(32, _PATH, ECHO.probe.body, _JSON)


def infer_megabyte() -> HttpLoad:
    """A megabyte of numbers; as JSON, since MLServer takes no binary tensors over REST."""
    return HttpLoad(4, _PATH, _body("FP32", [0.5] * FLOATS), _JSON)


def model_infer() -> GrpcLoad:
    """A tensor of one word in one gRPC call."""
    return GrpcLoad(32, f"{SERVICE}/ModelInfer", _word().SerializeToString(), _are_words(1))


def model_infer_megabyte() -> GrpcLoad:
    """A megabyte of numbers as raw contents."""
    raw = struct.pack("<f", 0.5) * FLOATS
    request = ModelInferRequest(model_name="echo", id="1", raw_input_contents=[raw])
    request.inputs.add(name="data", datatype="FP32", shape=[FLOATS])
    return GrpcLoad(8, f"{SERVICE}/ModelInfer", request.SerializeToString(), _is_megabyte)


def model_stream_infer() -> GrpcLoad:
    """One request, and a stream of responses."""
    return GrpcLoad(8, f"{SERVICE}/ModelStreamInfer", _word().SerializeToString(), _are_words(RESPONSES))


def _word() -> ModelInferRequest:
    request = ModelInferRequest(model_name="echo", id="1")
    tensor = request.inputs.add(name="data", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(_WORD.encode())
    return request


class _are_words:
    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, messages: list[bytes]) -> bool:
        answers = [ModelInferResponse.FromString(message) for message in messages]
        return len(answers) == self._count and all(
            answer.outputs[0].contents.bytes_contents == [_WORD.encode()] for answer in answers
        )


def _is_megabyte(messages: list[bytes]) -> bool:
    (message,) = messages
    answer = ModelInferResponse.FromString(message)
    numbers = answer.outputs[0].contents.fp32_contents
    return len(answer.raw_output_contents[0] if answer.raw_output_contents else numbers) in (4 * FLOATS, FLOATS)
