"""Runs in MLServer's environment: its types, codecs, converters and stubs talk to a server of ours.

client.py REST_ADDRESS GRPC_ADDRESS MODEL
"""

import asyncio
import sys
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pandas as pd
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec, StringCodec
from mlserver.grpc import converters
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.types import InferenceRequest, InferenceResponse


def post(url: str, request: InferenceRequest) -> bytes:
    """Send a request as MLServer's documentation does."""
    sent = urllib.request.Request(url, request.model_dump_json().encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(sent, timeout=180) as response:
        answer: bytes = response.read()
        return answer


def rest(address: str, model: str) -> None:
    """Arrays, data frames and text over REST, one response and several."""
    url = f"{address}/v2/models/{model}"
    array = np.array([[1.5, 2.0], [3.0, np.nan]])
    request = NumpyRequestCodec.encode_request(array)
    response = InferenceResponse.model_validate_json(post(f"{url}/infer", request))
    np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[0]), 2 * array)
    assert response.model_name == model

    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    request = PandasCodec.encode_request(frame, use_bytes=False)
    response = InferenceResponse.model_validate_json(post(f"{url}/infer", request))
    assert PandasCodec.decode_response(response).to_dict("list") == {"a": [2, 4], "b": ["xx", "yy"]}

    request = InferenceRequest(id="mine", inputs=[StringCodec.encode_input("text", ["how do"], use_bytes=False)])
    body = post(f"{url}/infer_stream", request)
    events = [InferenceResponse.model_validate_json(line[6:]) for line in body.splitlines() if line]
    assert [StringCodec.decode_output(event.outputs[0]) for event in events] == [["how"], ["do"]]
    assert {event.id for event in events} == {"mine"}


async def over_grpc(address: str, model: str, *, use_raw: bool) -> None:
    """Arrays and streams over gRPC, typed and raw."""
    array = np.array([[1.5, 2.0]], dtype=np.float32)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)

        def message(inputs: Any) -> Any:
            request = InferenceRequest(inputs=[inputs])
            return converters.ModelInferRequestConverter.from_types(
                request, model_name=model, model_version=None, use_raw=use_raw
            )

        received = await stub.ModelInfer(message(NumpyCodec.encode_input("x", array)), timeout=180)
        response = converters.ModelInferResponseConverter.to_types(received)
        np.testing.assert_array_equal(NumpyCodec.decode_output(response.outputs[0]), 2 * array)

        async def requests() -> AsyncIterator[Any]:
            for words in ("how do", "you do"):
                yield message(StringCodec.encode_input("text", [words]))

        call = stub.ModelStreamInfer(requests(), timeout=180, metadata=(("x-stream-envelope", "mlserver"),))
        words = []
        async for each in call:
            response = converters.ModelInferResponseConverter.to_types(each)
            words += StringCodec.decode_output(response.outputs[0])
        assert words == ["how", "do", "you", "do"], words


if __name__ == "__main__":
    _, rest_address, grpc_address, name = sys.argv
    rest(rest_address, name)
    for raw in (False, True):
        asyncio.run(over_grpc(grpc_address, name, use_raw=raw))
    print("all is well")
