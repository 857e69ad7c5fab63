"""Calls of `ModelStreamInfer`, and models that answer them."""

import asyncio
from typing import Any

import grpc
from tests.apis.grpc.models import registry_of
from tests.endpoints.fake_serving import FakeModel, Submitted

from torchserve_py.apis.grpc.protos.open_inference_pb2 import ModelStreamInferResponse
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
TRITON = (("x-stream-envelope", "triton"),)
MLSERVER = (("x-stream-envelope", "mlserver"),)


async def until(condition):
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def request(id_: str = "", *, model: str = "noop", raw: bool = False, **parameters: Any) -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=id_)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    if raw:
        message.inputs.add(name="x", datatype="UINT8", shape=[1])
        message.raw_input_contents.append(b"\x01")
    return message


def response(call: Submitted, text: str = "") -> bytes:
    """What a worker makes of a request: it echoes the id, and says `text` in the version."""
    sent = ModelInferRequest.FromString(call.body)
    return ModelInferResponse(model_name=sent.model_name, id=sent.id, model_version=text).SerializeToString()


def respond(call: Submitted) -> None:
    call.part(response(call))


def respond_with(*texts: str, end: str | None = None):
    """A model that streams; `end` is what its last part says, None for a last part without a response."""

    def behave(call: Submitted) -> None:
        for text in texts:
            call.part(response(call, text), more=True)
        call.part(b"" if end is None else response(call, end))

    return behave


def answering(model: FakeModel, behave=respond) -> Any:
    model.behave = behave
    return registry_of(model)


def stream(serving, metadata: Any = None, *, bare: bool = False) -> Any:
    method = serving.inference_channel.stream_stream(
        METHOD,
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=(ModelInferResponse if bare else ModelStreamInferResponse).FromString,
    )
    return method(metadata=metadata)


def final(message: ModelStreamInferResponse) -> bool:
    return message.infer_response.parameters["triton_final_response"].bool_param


async def rest(call) -> list[Any]:
    await call.done_writing()
    return await received(call)


async def received(call) -> list[Any]:
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


def ids(messages) -> list[str]:
    return [message.infer_response.id for message in messages]
