"""Fake models and their requests, as gRPC clients see them."""

from dataclasses import replace
from typing import Any

from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.base.causes import Cause


def request(
    sequence_id: str | None = None, model: str = "noop", version: str = "", **entries: bytes
) -> PredictionsRequest:
    return PredictionsRequest(model_name=model, model_version=version, input=entries, sequence_id=sequence_id)


def data(call: Submitted) -> bytes:
    """The entry ``data`` of a row."""
    (value,) = (value for name, _, value in call.body if name == "data")
    return bytes(value)


def echo(call: Submitted) -> None:
    call.part(data(call))


def later(call: Submitted) -> None:
    """Answer when the test says so."""


def refuse(cause: Cause) -> Any:
    return lambda call: call.fail(cause)


def stateful_model(*, queue_size: int = 1, continuous: bool = False, **more: Any) -> FakeModel:
    model = FakeModel(stateful=True, **more)
    model.config = replace(model.config, max_sequence_job_queue_size=queue_size, continuous=continuous)
    model.behave = echo
    return model


def registry_of(*models: FakeModel) -> FakeServing:
    return FakeServing(registered=list(models))
