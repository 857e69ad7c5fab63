"""Clients of the Open Inference Protocol over gRPC that are not Triton's.

MLServer's send typed contents and read messages without an envelope; others know nothing and ask for the definitions.
"""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.e2e.running_server import DEADLINE

from torchserve_py.apis.grpc.protos import open_inference_pb2 as messages
from torchserve_py.apis.grpc.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse


def text(*texts: str, model: str = "talk", id_: str = "") -> ModelInferRequest:
    request = ModelInferRequest(model_name=model, id=id_)
    sent = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts), 1])
    sent.parameters["content_type"].string_param = "str"
    sent.contents.bytes_contents.extend(each.encode() for each in texts)
    return request


def said(response: ModelInferResponse) -> str:
    assert not response.raw_output_contents
    (content,) = response.outputs[0].contents.bytes_contents
    return content.decode()


def bare_stream(channel: grpc.Channel, requests: Iterator[ModelInferRequest]) -> Any:
    """What the stub that MLServer has calls."""
    method = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=ModelInferRequest.SerializeToString,
        response_deserializer=ModelInferResponse.FromString,
    )
    return method(requests, timeout=DEADLINE)


def test_typed_contents(channel):
    stub = GRPCInferenceServiceStub(channel)
    response = stub.ModelInfer(text("hello", id_="7"))
    assert (said(response), response.id) == ("once hello", "7")
    request = ModelInferRequest(model_name="arithmetic")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    response = stub.ModelInfer(request)
    assert {output.name: list(output.contents.fp32_contents) for output in response.outputs} == {
        "next": [2, 3],
        "double": [2, 4],
    }


def test_a_stream_of_requests_into_one_model(channel):
    responses = bare_stream(channel, iter([text("one"), text("two")]))
    assert [said(response) for response in responses] == ["heard one", "heard two", "heard 2 in all"]


def test_requests_and_responses_alternate(channel):
    requests: queue.SimpleQueue[ModelInferRequest | None] = queue.SimpleQueue()
    responses = bare_stream(channel, iter(requests.get, None))
    for each in ("one", "two"):
        requests.put(text(each))
        assert said(next(responses)) == f"heard {each}"
    requests.put(None)
    assert [said(response) for response in responses] == ["heard 2 in all"]


def test_an_error_ends_such_a_stream(channel):
    responses = bare_stream(channel, iter([text("one"), text("raise"), text("two")]))
    assert said(next(responses)) == "heard one"
    with pytest.raises(grpc.RpcError) as failed:
        next(responses)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "as it was told")


def test_such_a_stream_to_a_handler(channel):
    def requests():
        for number in (2, 1):
            request = ModelInferRequest(model_name="count", id=str(number))
            request.inputs.add(name="x", datatype="INT64", shape=[1]).contents.int64_contents.append(number)
            yield request

    responses = list(bare_stream(channel, requests()))
    numbers = {id_: [r.outputs[0].contents.int64_contents[0] for r in responses if r.id == id_] for id_ in ("1", "2")}
    assert numbers == {"2": [0, 1], "1": [0]}


# By reflection, without any definition.


@pytest.mark.parametrize(
    "service", ["inference.GRPCInferenceService", "org.pytorch.serve.grpc.openinference.GRPCInferenceService"]
)
def test_a_client_that_knows_nothing(channel, service):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert service in database.get_services()
    method = DescriptorPool(database).FindServiceByName(service).FindMethodByName("ModelInfer")
    request = GetMessageClass(method.input_type)(model_name="arithmetic")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    call = channel.unary_unary(
        f"/{service}/ModelInfer",
        request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    response = call(request, timeout=DEADLINE)
    assert list(response.outputs[0].contents.fp32_contents) == [2, 3]


def test_the_server_answers_torchserves_own_clients_too(channel):
    call = channel.unary_unary(
        "/org.pytorch.serve.grpc.openinference.GRPCInferenceService/ServerMetadata",
        request_serializer=messages.ServerMetadataRequest.SerializeToString,
        response_deserializer=messages.ServerMetadataResponse.FromString,
    )
    assert call(messages.ServerMetadataRequest(), timeout=DEADLINE).name == "torchserve-py"
