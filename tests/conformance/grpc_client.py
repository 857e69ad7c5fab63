"""A gRPC client of a running server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
from tests.e2e.running_server import DEADLINE, RunningServer

from torchserve_py.apis.grpc.protos import inference_pb2_grpc, management_pb2_grpc
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionResponse, PredictionsRequest


def target(server: RunningServer, service: str = "inference") -> str:
    """Return ``host:port`` of a service, which the server has told in its log."""
    found = re.findall(rf"grpc_{service}_port: listening at grpcs?://(\S+)", server.log())
    return str(found[-1])


class Client:
    """Stubs of both services; a context manager."""

    def __init__(self, server: RunningServer) -> None:
        self.inference_channel = grpc.insecure_channel(target(server))
        self.management_channel = grpc.insecure_channel(target(server, "management"))
        self.inference = inference_pb2_grpc.InferenceAPIsServiceStub(self.inference_channel)
        self.management = management_pb2_grpc.ManagementAPIsServiceStub(self.management_channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.inference_channel.close()
        self.management_channel.close()

    def predict(self, model: str, **entries: bytes) -> bytes:
        """Return the answer to one request."""
        request = PredictionsRequest(model_name=model, input=entries)
        return bytes(self.inference.Predictions(request, timeout=DEADLINE).prediction)

    def conversation(self) -> Conversation:
        """Open a call for sequences."""
        return Conversation(self.inference)


class Conversation:
    """One call of StreamPredictions2: what is sent, and what comes back."""

    def __init__(self, stub: Any) -> None:
        self._requests: SimpleQueue[PredictionsRequest | None] = SimpleQueue()
        self.call = stub.StreamPredictions2(iter(self._requests.get, None), timeout=DEADLINE)

    def send(self, model: str, sequence_id: str | None, data: bytes | str, **entries: bytes) -> None:
        """Send a request."""
        value = data.encode() if isinstance(data, str) else data
        request = PredictionsRequest(model_name=model, sequence_id=sequence_id, input={"data": value, **entries})
        self._requests.put(request)

    def receive(self) -> PredictionResponse:
        """Wait for the next response."""
        return next(self.call)

    def half_close(self) -> None:
        """Send no more."""
        self._requests.put(None)

    def rest(self) -> Iterator[PredictionResponse]:
        """What comes until the server ends the call."""
        self.half_close()
        yield from self.call

    def cancel(self) -> None:
        """Give up."""
        self.call.cancel()
        self.half_close()
